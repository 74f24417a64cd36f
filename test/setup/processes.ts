import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';

export const ROOT = path.resolve(import.meta.dirname, '../..');
const STOP_MS = 10_000;

export interface Program extends AsyncDisposable {
  readonly process: ChildProcess;
  /** Everything that it printed so far, stderr and stdout. */
  readonly output: () => string;
  /** Resolves with the first line of stdout that `wanted` accepts. Rejects when the program ends before. */
  line(wanted: (line: string) => boolean, deadlineMs?: number): Promise<string>;
  readonly exited: Promise<number | null>;
}

/** Starts a TypeScript program of the repository from its sources, as a process of its own. */
export function startProgram(file: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): Program {
  const clean = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !name.startsWith('FLEET_') && !name.startsWith('VITEST')),
  );
  const child = spawn(
    process.execPath,
    ['--import', 'tsx', '--conditions=@hermes-fleet/source', path.join(ROOT, file), ...args],
    { cwd: ROOT, env: { ...clean, ...env }, stdio: ['pipe', 'pipe', 'pipe'] },
  );
  let output = '';
  let stdout = '';
  const listeners = new Set<() => void>();
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (chunk: string) => {
      output += chunk;
      if (stream === child.stdout) stdout += chunk;
      for (const listener of listeners) listener();
    });
  }
  const exited = new Promise<number | null>((resolve) => child.once('exit', (code) => resolve(code)));
  void exited.then(() => {
    for (const listener of listeners) listener();
  });
  const killNow = (): void => void child.kill('SIGKILL');
  process.once('exit', killNow);
  return {
    process: child,
    output: () => output,
    exited,
    line: async (wanted, deadlineMs = 60_000) =>
      await new Promise<string>((resolve, reject) => {
        const timer = setTimeout(() => look(true), deadlineMs);
        const look = (isLate = false): void => {
          const found = stdout.split('\n').slice(0, -1).find(wanted);
          const isOver = isLate || child.exitCode !== null || child.signalCode !== null;
          if (found === undefined && !isOver) return;
          clearTimeout(timer);
          listeners.delete(look);
          if (found === undefined)
            reject(new Error(`${file} ${isLate ? 'did not say it in time' : 'ended'}:\n${output.slice(-4000)}`));
          else resolve(found);
        };
        listeners.add(look);
        look();
      }),
    async [Symbol.asyncDispose]() {
      process.off('exit', killNow);
      if (child.exitCode !== null || child.signalCode !== null) return;
      child.kill('SIGTERM');
      const force = setTimeout(killNow, STOP_MS);
      await once(child, 'exit');
      clearTimeout(force);
    },
  };
}
