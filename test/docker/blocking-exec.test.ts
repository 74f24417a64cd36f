import { afterAll, beforeAll, expect, test } from 'vitest';
import { docker } from '../setup/borrowed-box.ts';
import { type HermesFleet, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { callTool, say, type Script, turnOf } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet({ program: 'test/setup/blocking-worker-main.ts' });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

/** Command lines in the boxes of the fleet that are there at the moment. */
const processes = (): string[] =>
  docker('ps', '-q', '--filter', `label=hermes-fleet.fleet=${fleet.id}`, '--filter', 'label=hermes-fleet.role=sandbox')
    .split('\n')
    .filter(Boolean)
    .flatMap((id) => {
      try {
        return docker('top', id, '-eo', 'pid,args').split('\n').slice(1);
      } catch {
        return [];
      }
    });

const program = 'import sys\nprint(sum(range(int(sys.argv[1]))))\n';

verifies(
  'hermes:one-exec',
  'a whole session runs over a blocking exec: commands, file tools, a background process, a script, collecting',
  async () => {
    const script: Script = (request) =>
      [
        callTool('write_file', { path: 'sum.py', content: program }),
        callTool('terminal', { command: 'export N=11; python3 sum.py $N' }),
        callTool('patch', { mode: 'replace', path: 'sum.py', old_string: 'sum(', new_string: '2 * sum(' }),
        callTool('terminal', { command: 'python3 sum.py $N' }),
        callTool('terminal', { command: 'sleep 4321', background: true }),
        callTool('search_files', { pattern: 'range', path: '.' }),
      ][turnOf(request)] ?? say('done');
    const { verdict, items, activation, close } = await fleet.run('blocking', script, {
      collect: { commands: [{ name: 'cat', argv: ['cat', 'sum.py'] }], files: ['sum.py'] },
    });
    expect(verdict).toBe('ok');
    expect(activation.body).toMatchObject({ integrity: 'captured', complete: true });
    const outputs = outputsIn(items);
    expect(outputs[1]).toContain('55');
    expect(outputs[3]).toContain('110');
    expect(outputs[5]).toContain('sum.py');
    expect(close.body).toMatchObject({
      sandbox: 'removed',
      collected: { commands: { cat: { stdout: program.replace('sum(', '2 * sum(') } }, files: [{ path: 'sum.py' }] },
    });
  },
);

test('a time limit of a tool, and a cancel, end what runs over a blocking exec', async () => {
  const script: Script = (request) =>
    turnOf(request) === 0
      ? callTool('terminal', { command: 'sleep 1111', timeout: 1 })
      : callTool('terminal', { command: 'sleep 2222' });
  await fleet.begin('blocking-cancel', script, { timeouts: { tool_s: 30 } });
  await expect
    .poll(() => processes().some((line) => line.includes('sleep 2222')), { timeout: 60_000, interval: 100 })
    .toBe(true);
  expect(processes().filter((line) => line.includes('sleep 1111'))).toEqual([]);
  await fleet.client.cancel({ sessionId: 'blocking-cancel', commandId: 'a' });
  const ended = await fleet.client.wait('blocking-cancel', 'a');
  expect([ended.class, ended.code]).toEqual(['cancelled', 'by_caller']);
  expect(processes().filter((line) => line.includes('sleep 2222'))).toEqual([]);
  await fleet.client.wait('blocking-cancel', 'close');
});

test('Hermes inside is refused by a provider that has no streams, in a sentence that names the field', async () => {
  const { seed } = await fleet.run('blocking-inside', say('x'), { hermes: { placement: 'inside' } });
  expect([seed.class, seed.code]).toEqual(['infra', 'runner_start']);
  expect(seed.body?.message).toBe('hermes.placement "inside" is more than this provider can do');
});
