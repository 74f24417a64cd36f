import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { killGroup, killMarked, trackGroup } from './local-kill.ts';
import type { RunnerProcess, SandboxProvider } from './provider.ts';

export interface LocalRunnerOptions {
  /** Python with the pinned Hermes. */
  readonly python: string;
  readonly hostScript: string;
  /** PATH of the host. */
  readonly path: string;
}

/** The runner host as a child process. It ends when this end of its stdin is closed, by us or by the worker's death. */
export async function launchLocalRunner(
  options: LocalRunnerOptions,
  { signal, onOutput, onLog }: Parameters<SandboxProvider['launchRunner']>[0],
): Promise<RunnerProcess> {
  signal.throwIfAborted();
  const home = await mkdtemp(path.join(tmpdir(), 'hf-runner-'));
  // Of an HF_ name: those are what the host hands down to its children.
  const mark = `HF_RUNNER=${randomBytes(9).toString('hex')}`;
  const [markName = '', markValue = ''] = mark.split('=');
  const child = spawn(options.python, ['-u', options.hostScript], {
    cwd: home,
    env: {
      PATH: options.path,
      LANG: 'C.UTF-8',
      HOME: home,
      HF_ROOT: home,
      HF_UIDS: 'off',
      [markName]: markValue,
      PYTHONHASHSEED: '0',
      PYTHONDONTWRITEBYTECODE: '1',
    },
    detached: true,
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  trackGroup(mark, child.pid);
  child.stdout.on('data', onOutput);
  child.stderr.setEncoding('utf8').on('data', onLog);
  // Its end is heard of by `close`.
  child.stdin.on('error', () => undefined);
  const ended = new Promise<{ reason: string; oom: boolean }>((resolve) => {
    child.once('error', (error) =>
      resolve({ reason: `the runner host cannot be started (${error.message})`, oom: false }),
    );
    child.once('close', (code, by) => resolve({ reason: `the runner host ended with ${by ?? code}`, oom: false }));
  });
  void ended.then(async () => await rm(home, { recursive: true, force: true })).catch(() => undefined);
  return {
    write: (data) => void (child.stdin.destroyed || child.stdin.write(data)),
    get queuedBytes() {
      return child.stdin.writableLength;
    },
    ended,
    remove: async () => {
      killGroup(child.pid);
      await killMarked(mark);
      await ended;
    },
  };
}
