import { spawnSync } from 'node:child_process';
import Docker from 'dockerode';
import { afterAll, beforeAll, expect } from 'vitest';
import { makeCodingImage, REPOSITORY, RUN_TESTS } from '../setup/coding-image.ts';
import { callsIn, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { type ChatRequest, callTool, type Reply, say, type Script, textOf, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;
let image: string;

beforeAll(async () => {
  image = await makeCodingImage(new Docker());
  fleet = await startHermesFleet();
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

const lastOutput = ({ messages }: ChatRequest): string => textOf(messages.findLast(({ role }) => role === 'tool'));

/** The model goes on only where it has seen what it must have seen. */
const afterSeeing =
  (seen: RegExp, reply: Reply): Script =>
  (request) =>
    seen.test(lastOutput(request)) ? reply : say(`not seen: ${String(seen)} in ${lastOutput(request)}`);

const edit = (old: string, mended: string): Reply =>
  callTool('patch', { mode: 'replace', path: 'warehouse/stock.py', old_string: old, new_string: mended });

const REPORT = `def report(stock, articles):
    return "".join(f"{article}: {stock.of(article)}\\n" for article in articles)
`;

/** Sees the tests fail, reads, mends two faults, adds the missing module, and sees them pass; all as root. */
const coder: Script = turns([
  callTool('terminal', { command: `git status --short; ${RUN_TESTS}` }),
  afterSeeing(/No module named 'warehouse.report'/, callTool('read_file', { path: 'warehouse/stock.py' })),
  afterSeeing(
    /self\._pieces\[article\] = pieces/,
    callTool('write_file', { path: 'warehouse/report.py', content: REPORT }),
  ),
  callTool('terminal', { command: RUN_TESTS }),
  afterSeeing(
    /failures=2/,
    edit(
      '        self._pieces[article] = pieces\n',
      '        self._pieces[article] = self._pieces.get(article, 0) + pieces\n',
    ),
  ),
  edit(
    '    def take(self, article, pieces):\n',
    '    def take(self, article, pieces):\n        if pieces > self.of(article):\n            raise ValueError(article)\n',
  ),
  callTool('terminal', { command: `${RUN_TESTS} && id -un && ln -s ${REPOSITORY} /opt/repo && git add -N .` }),
  afterSeeing(/OK[^]*root/, say('Both faults are mended, and the report is there.')),
]);

/** A fresh container of the task's image, with a command and its input. */
const inFreshImage = (command: string, input: string) =>
  spawnSync('docker', ['run', '--rm', '-i', '--network', 'none', '-w', REPOSITORY, image, 'sh', '-c', command], {
    input,
    encoding: 'utf8',
    timeout: 60_000,
  });

verifies(
  'example:coding',
  'a repository task in its image: the agent reads, edits and runs tests as root, and its patch makes the tests pass elsewhere',
  async () => {
    const { verdict, items, activation, close } = await fleet.run(
      'coding',
      coder,
      {
        sandbox: { image, workdir: REPOSITORY },
        collect: {
          commands: [
            { name: 'patch', argv: ['git', 'diff'] },
            { name: 'files', argv: ['git', 'diff', '--name-only'] },
            { name: 'root', argv: ['readlink', '/opt/repo'] },
          ],
          files: ['warehouse/report.py'],
        },
      },
      { input: 'The tests of this repository fail. Make them pass.' },
    );
    expect(messagesIn(items)).toEqual(['Both faults are mended, and the report is there.']);
    expect(verdict).toBe('ok');
    expect(callsIn(items).map(({ name }) => name)).toEqual([
      'terminal',
      'read_file',
      'write_file',
      'terminal',
      'patch',
      'patch',
      'terminal',
    ]);
    expect(outputsIn(items)).toHaveLength(7);
    expect(activation.body).toMatchObject({ integrity: 'captured', complete: true, gaps: [] });

    const { commands, files } = close.body?.collected ?? { commands: {}, files: [] };
    expect(commands['files']?.stdout.split('\n')).toEqual(['warehouse/report.py', 'warehouse/stock.py', '']);
    expect(commands['root']?.stdout.trim()).toBe(REPOSITORY);
    expect(files[0]?.text).toBe(REPORT);
    const patch = commands['patch'];
    expect(patch).toMatchObject({ exit_code: 0, truncated: false, error: null });
    expect(inFreshImage(RUN_TESTS, '').status).not.toBe(0);
    const patched = inFreshImage(`git apply - && ${RUN_TESTS}`, patch?.stdout ?? '');
    expect(patched.stdout).toMatch(/Ran 3 tests[^]*OK/);
    expect(patched.status).toBe(0);
  },
);

verifies(
  ['example:coding', 'result:collect'],
  'the patch of a task that ran out of turns is in its close result all the same',
  async () => {
    const { verdict, close } = await fleet.run('coding-unfinished', coder, {
      sandbox: { image, workdir: REPOSITORY },
      hermes: { max_turns: 5 },
      collect: { commands: [{ name: 'patch', argv: ['git', 'diff'] }] },
    });
    expect(verdict).toBe('incomplete/max_turns');
    expect(close.body?.session).toEqual({ class: 'incomplete', code: 'max_turns' });
    expect(close.body?.collected?.commands['patch']?.stdout).toContain(
      '+        self._pieces[article] = self._pieces.get(article, 0) + pieces',
    );
  },
);
