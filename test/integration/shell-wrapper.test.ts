import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { CommandOutput } from '@hermes-fleet/worker/broker/output';
import { killByMark, quote, stateFolder, takeOver, wrapCommand } from '@hermes-fleet/worker/broker/shell-wrapper';

const SHELLS = [
  ['bash', ['/bin/bash']],
  ['dash', ['/bin/dash']],
  ['busybox ash', ['/bin/busybox', 'sh']],
] as const;
const MARKER = '__HF_TEST__';
const DEADLINE_MS = 15_000;

let root: string;
/** Of this test alone, in the environment of everything that it starts. */
let mark: string;
let count = 0;

beforeEach(() => {
  root = realpathSync(mkdtempSync(path.join(os.tmpdir(), 'shell-wrapper-')));
  mark = path.basename(root);
});
afterEach(async () => {
  spawnSync('/bin/bash', ['-c', killByMark(`HF_ACT=${mark}`, '$$')]);
  await vi.waitFor(() => expect(alive(`HF_ACT=${mark}`)).toEqual([]), DEADLINE_MS);
  rmSync(root, { recursive: true, force: true });
});

/** Processes that have a text in their environment. */
function alive(text: string): string[] {
  return readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/environ`, 'utf8').includes(text);
    } catch {
      return false;
    }
  });
}

interface Options {
  readonly cwd?: string;
  readonly epoch?: string;
  readonly pathSuffix?: string;
  readonly hasSwitch?: boolean;
  readonly exec?: string;
}

interface Started {
  readonly child: ChildProcessWithoutNullStreams;
  readonly output: CommandOutput;
  readonly exec: string;
  readonly exited: Promise<number | null>;
}

function start(shell: readonly string[], command: string, options: Options = {}): Started {
  const exec = options.exec ?? `${mark}.${++count}_`;
  const text = wrapCommand({
    command,
    cwd: options.cwd ?? root,
    stateFolder: path.join(root, 'state'),
    marker: MARKER,
    activation: mark,
    exec,
    epoch: options.epoch ?? '1',
    pathSuffix: options.pathSuffix,
    hasSwitch: options.hasSwitch ?? true,
  });
  const [file = '', ...args] = shell;
  // Its stdin is a socket here, for which bash would read the profile of a remote login.
  const env = { PATH: process.env['PATH'], HOME: root, HF_ACT: mark, HF_EXEC: exec };
  const child = spawn(file, [...args, '-c', text], { env, cwd: '/' });
  const output = new CommandOutput(MARKER, 1_000_000);
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => output.push(chunk));
  child.stdin.on('error', () => undefined);
  return { child, output, exec, exited: new Promise((resolve) => child.once('exit', (code) => resolve(code))) };
}

/** Runs a command to its marker, as the broker does. */
async function run(
  shell: readonly string[],
  command: string,
  options: Options = {},
): Promise<{ text: string; code: number | undefined; cwd: string | undefined; exit: number | null }> {
  const started = start(shell, command, options);
  const exit = await started.exited;
  await vi.waitFor(() => expect(started.output.end).toBeDefined(), 2000).catch(() => undefined);
  const { end } = started.output;
  return { text: started.output.text(), code: end?.code, cwd: end?.cwd, exit };
}

describe.each(SHELLS.filter(([, [file]]) => existsSync(file)))('%s', (_name, shell) => {
  test.each([
    ['true', 0],
    ['false', 1],
    ['exit 7', 7],
    ['(exit 9)', 9],
    ['no-such-command-anywhere', 127],
    ['if', 2],
    ['set -e; false; echo not reached', 1],
    ['f() { exit 4; }; f', 4],
  ])('%j ends with %i', async (command, code) => {
    const result = await run(shell, command);
    expect(result.code).toBe(code);
    expect(result.text).not.toContain('not reached');
  });

  test('a shell that traces itself or refuses unset variables ends as any other', async () => {
    expect(await run(shell, 'set -u; echo x')).toMatchObject({ text: 'x\n', code: 0 });
    const traced = await run(shell, 'set -x; true');
    expect([traced.code, traced.text.includes('__hf')]).toEqual([0, false]);
  });

  test('both streams arrive in one order, the marker last, and nothing of ours among them', async () => {
    const result = await run(shell, 'echo one; echo two >&2; printf three');
    expect(result).toEqual({ text: 'one\ntwo\nthree', code: 0, cwd: root, exit: 0 });
  });

  test('directory, exports and odd values are kept for the next command', async () => {
    const value = `a'b"c $HOME \`id\` \\ \n line é`;
    await run(shell, `mkdir 'a dir'; cd 'a dir'; export KEPT=${quote(value)}; PLAIN=gone; umask 077`);
    const next = await run(shell, 'printf %s "$KEPT|$PLAIN"', { cwd: path.join(root, 'a dir') });
    expect(next).toMatchObject({ text: `${value}|`, code: 0, cwd: path.join(root, 'a dir') });
  });

  test('exports are kept when the command leaves by exit', async () => {
    await run(shell, 'export KEPT=yes; exit 3');
    expect((await run(shell, 'printf %s "$KEPT"')).text).toBe('yes');
  });

  test.each([
    `it's`,
    `'`,
    `''`,
    `"$HOME" \`id\` $(id) \\ \\' !x`,
    '-n --help',
    'line\nline\ttab',
    'é漢🙂',
    '%s %d \\n',
    'x'.repeat(50_000),
  ])('a quoted text is that text (%#)', async (text) => {
    expect((await run(shell, `printf %s ${quote(text)}`)).text).toBe(text);
  });

  test('a command of several lines with a here-document and a comment at its end runs whole', async () => {
    const result = await run(shell, `cat <<'EOF'\n$HOME 'x'\nEOF\nfor i in 1 2\ndo echo $i\ndone # done`);
    expect(result).toMatchObject({ text: `$HOME 'x'\n1\n2\n`, code: 0 });
  });

  test('a directory with an odd name is entered, and one that is not there is told by 126', async () => {
    const odd = `${root}/-x 'q' $y`;
    await run(shell, `mkdir -p ${quote(odd)}`);
    expect(await run(shell, 'pwd', { cwd: odd })).toMatchObject({ text: `${odd}\n`, cwd: odd });
    expect(await run(shell, 'echo ran', { cwd: `${root}/none` })).toMatchObject({
      text: expect.not.stringContaining('ran'),
      code: 126,
    });
  });

  test('stdin is empty for the command', async () => {
    expect(await run(shell, 'cat; echo end')).toMatchObject({ text: 'end\n', code: 0 });
  });

  test('what is written to a stdin of its own is read by the command', async () => {
    const started = start(shell, 'cat', { hasSwitch: false });
    started.child.stdin.end(`it's input\n`);
    expect(await started.exited).toBe(0);
    expect(started.output.text()).toBe(`it's input\n`);
  });

  test('a suffix is added to the path once', async () => {
    const command = 'printf %s "$PATH"';
    const first = await run(shell, command, { pathSuffix: '/opt/tools' });
    expect(first.text).toMatch(/:\/opt\/tools$/);
    expect((await run(shell, command, { pathSuffix: '/opt/tools' })).text).toBe(first.text);
  });

  test('a lower epoch than that of the newest owner is refused, an equal or higher one is not', async () => {
    writeFolder('epoch', '5\n');
    expect(await run(shell, 'echo ran', { epoch: '4' })).toMatchObject({ text: '', code: 125 });
    for (const epoch of ['5', '6', '10']) expect((await run(shell, 'echo ran', { epoch })).text).toBe('ran\n');
  });

  test.each(['', 'x\n', '5'])("an epoch file that holds %j stands in nobody's way, and shows nothing", async (text) => {
    writeFolder('epoch', text);
    expect(await run(shell, 'echo ran', { epoch: '7' })).toMatchObject({ text: 'ran\n', code: 0 });
  });

  test('the end of stdin kills the command and grandchildren that left its session', async () => {
    const command = `setsid sleep 300 & setsid sh -c 'trap "" TERM HUP; sleep 300; echo x' & echo begun; sleep 300`;
    const started = start(shell, command);
    await vi.waitFor(() => expect(started.output.text()).toContain('begun'), DEADLINE_MS);
    await vi.waitFor(() => expect(alive(`HF_EXEC=${started.exec}`).length).toBeGreaterThan(3), DEADLINE_MS);
    started.child.stdin.end();
    await started.exited;
    await vi.waitFor(() => expect(alive(`HF_EXEC=${started.exec}`)).toEqual([]), DEADLINE_MS);
  });

  test('the end of stdin kills a command that never leaves its shell', async () => {
    const started = start(shell, 'echo begun; trap "" TERM HUP; while :; do :; done');
    await vi.waitFor(() => expect(started.output.text()).toContain('begun'), DEADLINE_MS);
    started.child.stdin.end();
    await started.exited;
    expect(started.output.end).toBeUndefined();
  });

  test('a command that has ended leaves its background process alone, and no watcher behind', async () => {
    const started = start(shell, 'setsid sleep 300 >/dev/null 2>&1 & echo $!');
    await started.exited;
    const [pid = ''] = started.output.text().trim().split('\n');
    started.child.stdin.destroy();
    await vi.waitFor(() => expect(alive(`HF_EXEC=${started.exec}`)).toHaveLength(1), DEADLINE_MS);
    expect(existsSync(`/proc/${pid}`)).toBe(true);
  });

  test('a command bears its own mark, not that of the one whose exports it has', async () => {
    await run(shell, 'export KEPT=1', { exec: `${mark}.old_` });
    const result = await run(shell, 'env | grep ^HF_', { exec: `${mark}.new_` });
    expect(result.text.trim().split('\n').toSorted()).toEqual([`HF_ACT=${mark}`, `HF_EXEC=${mark}.new_`]);
  });

  test('killing by mark takes one command and leaves its neighbours', async () => {
    const [one, other] = [`${mark}.1_`, `${mark}.12_`];
    for (const exec of [one, other]) await run(shell, 'setsid sleep 300 >/dev/null 2>&1 &', { exec });
    const [file, ...args] = shell;
    spawnSync(file, [...args, '-c', killByMark(`HF_EXEC=${one}`, '$$')]);
    await vi.waitFor(() => expect(alive(`HF_EXEC=${one}`)).toEqual([]), DEADLINE_MS);
    expect(alive(`HF_EXEC=${other}`)).toHaveLength(1);
  });

  test('taking over raises the epoch, ends an earlier run of the activation, and refuses to follow a newer owner', async () => {
    const folder = path.join(root, 'state');
    const [file, ...args] = shell;
    const take = (epoch: string): number | null =>
      spawnSync(file, [
        ...args,
        '-c',
        takeOver({ stateFolder: folder, epoch, runs: `${mark}.1.`, activation: `${mark}.1.${epoch}` }),
      ]).status;
    expect(take('3')).toBe(0);
    const env = (run_: string) => ({ PATH: process.env['PATH'], HF_ACT: `${mark}.${run_}` });
    const sleepers = ['1.3', '1.4', '2.3'].map((run_) => spawn('sleep', ['300'], { env: env(run_) }));
    await vi.waitFor(() => expect(alive(`HF_ACT=${mark}.`)).toHaveLength(3), DEADLINE_MS);
    expect(take('4')).toBe(0);
    await vi.waitFor(() => expect(alive(`HF_ACT=${mark}.1.3`)).toEqual([]), DEADLINE_MS);
    expect([alive(`HF_ACT=${mark}.1.4`).length, alive(`HF_ACT=${mark}.2.3`).length]).toEqual([1, 1]);
    expect(take('3')).toBe(125);
    expect(readFileSync(path.join(folder, 'epoch'), 'utf8')).toBe('4\n');
    for (const each of sleepers) each.kill('SIGKILL');
  });
});

test('the folder of a session is named by its digest and has nothing to quote', () => {
  expect(stateFolder('0123456789abcdef0123456789abcdef')).toBe('/tmp/.hf-0123456789ab');
});

function writeFolder(name: string, text: string): void {
  spawnSync('mkdir', ['-p', path.join(root, 'state')]);
  writeFileSync(path.join(root, 'state', name), text);
}
