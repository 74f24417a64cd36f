import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { launchScript, stopScript } from '@hermes-fleet/worker/hermes/inside';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { verifies } from '../setup/verifies.ts';

const RUN = '3.1700000000000';
const SHELLS = ['bash', 'dash', 'busybox'] as const;
let folder = '';
const children: ChildProcess[] = [];

beforeEach(() => {
  folder = path.join(mkdtempSync(path.join(tmpdir(), 'hf-inside-')), 'state');
});

afterEach(() => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
  rmSync(path.dirname(folder), { recursive: true, force: true });
});

const argvOf = (shell: (typeof SHELLS)[number], script: string): [string, string[]] =>
  shell === 'busybox' ? ['busybox', ['sh', '-c', script]] : [shell, ['-c', script]];

const has = (shell: string): boolean => spawnSync('sh', ['-c', `command -v ${shell}`]).status === 0;

for (const shell of SHELLS.filter(has))
  describe(`scripts of a run inside, in ${shell}`, () => {
    /** Stands in for the interpreter: it takes the arguments that Python would get, and stays. */
    const launch = (python = ['sh', '-c', 'exec sleep 1000', 'hermes']): ChildProcess => {
      const [command, args] = argvOf(shell, launchScript(folder, RUN, { python, env: {}, runner: '/nowhere' }));
      const child = spawn(command, args, { stdio: 'ignore' });
      children.push(child);
      return child;
    };
    const stop = (runs = RUN): number | null => {
      const [command, args] = argvOf(shell, stopScript(folder, runs));
      return spawnSync(command, args, { timeout: 20_000 }).status;
    };
    const pidFile = (): string => path.join(folder, `pid.${RUN}`);
    const started = async (): Promise<void> =>
      await expect.poll(() => existsSync(pidFile()), { timeout: 5000, interval: 10 }).toBe(true);

    verifies('hermes:stop', 'the shell that starts it records its PID, by which it is stopped', async () => {
      const child = launch();
      await started();
      expect(Number(readFileSync(pidFile(), 'utf8').split(' ')[0])).toBe(child.pid);
      const ended = once(child, 'exit');
      expect(stop()).toBe(0);
      expect(await ended).toEqual([null, 'SIGTERM']);
      expect(existsSync(pidFile())).toBe(false);
      expect(stop()).toBe(0);
    });

    test('one that ignores TERM is killed', async () => {
      const child = launch(['sh', '-c', 'trap "" TERM; while :; do sleep 0.1; done', 'hermes']);
      await started();
      // The trap is set a moment after the PID is there.
      await new Promise((resolve) => setTimeout(resolve, 300));
      const ended = once(child, 'exit');
      stop();
      expect(await ended).toEqual([null, 'SIGKILL']);
    });

    verifies('hermes:stop', 'a marker that is set before it starts keeps it from starting (S28)', async () => {
      expect(stop()).toBe(0);
      const child = launch();
      expect(await once(child, 'exit')).toEqual([143, null]);
      expect(existsSync(pidFile())).toBe(false);
    });

    verifies('hermes:stop', 'a PID that is somebody else’s by now is not signalled (S28)', async () => {
      const foreign = spawn('sleep', ['1000'], { stdio: 'ignore' });
      children.push(foreign);
      const child = launch();
      await started();
      child.kill('SIGKILL');
      await once(child, 'exit');
      const [, startTime = ''] = readFileSync(pidFile(), 'utf8').trim().split(' ');
      writeFileSync(pidFile(), `${foreign.pid} ${Number(startTime) - 1}\n`);
      expect(stop()).toBe(0);
      expect([foreign.exitCode, foreign.signalCode]).toEqual([null, null]);
    });

    test('a pattern stops the runs of a command, and no other one', async () => {
      const child = launch();
      await started();
      stop('4.*');
      expect(child.signalCode).toBe(null);
      const ended = once(child, 'exit');
      stop('3.*');
      expect(await ended).toEqual([null, 'SIGTERM']);
    });

    test('a run of an older owner does not start any more', async () => {
      expect(stop('9.*')).toBe(0);
      writeFileSync(path.join(folder, 'epoch'), '1700000000001\n');
      const child = launch();
      expect(await once(child, 'exit')).toEqual([125, null]);
    });
  });
