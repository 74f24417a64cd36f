import type { Sandbox, SandboxProcess } from '@hermes-fleet/worker/sandbox/provider';
import { describe, expect, test } from 'vitest';
import { abortable, type Bench, countAlive, deadline, killAlive, newSleep, shell, text } from './bench.ts';

interface Streamed {
  readonly process: SandboxProcess;
  readonly output: { stdout: string; stderr: string; bytes: number };
}

async function open(box: Sandbox, script: string, signal = deadline()): Promise<Streamed> {
  if (box.openProcess === undefined) throw new Error('the box has no streams');
  const output = { stdout: '', stderr: '', bytes: 0 };
  const process = await box.openProcess({
    argv: shell(box, script),
    signal,
    onOutput: (chunk, stream) => {
      if (output.bytes < 1_000_000) output[stream] += chunk.toString('latin1');
      output.bytes += chunk.length;
    },
  });
  return { process, output };
}

/** Checks of a command whose streams are the caller's. */
export function streamChecks(bench: () => Bench, box: () => Sandbox): void {
  describe('openProcess', () => {
    test('what is written arrives while the command runs, and the end of input ends it', async () => {
      const { process, output } = await open(
        box(),
        'while read -r line; do echo "got $line"; done; echo end >&2; exit 5',
      );
      await process.write(Buffer.from('one\n'));
      await expect.poll(() => output.stdout, { timeout: 20_000 }).toBe('got one\n');
      expect(await process.exitCode()).toBeUndefined();
      await process.write(Buffer.from('two\n'));
      process.endInput();
      expect((await process.ended).lost).toBeUndefined();
      await expect.poll(async () => await process.exitCode(), { timeout: 20_000 }).toBe(5);
      expect(output).toMatchObject({ stdout: 'got one\ngot two\n', stderr: 'end\n' });
      process.destroy();
    });

    test('four megabytes of input are taken as fast as the command reads', async () => {
      const { process, output } = await open(box(), 'wc -c');
      await process.write(Buffer.alloc(4_000_000, 'x'));
      process.endInput();
      await process.ended;
      expect(output.stdout.trim()).toBe('4000000');
    });

    test('a reader that pauses holds the writer up, and resuming lets it go on', async () => {
      const file = `progress-${newSleep().replace(' ', '-')}`;
      const { process, output } = await open(
        box(),
        `echo $$ >${file}.pid; i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero || exit; echo $i >${file}; done`,
      );
      await expect.poll(() => output.bytes, { timeout: 20_000 }).toBeGreaterThan(0);
      process.pause();
      const written = async (): Promise<number> => Number(await text(box(), `cat ${file} 2>/dev/null || echo 0`));
      let last = -1;
      await expect
        .poll(
          async () => {
            const now = await written();
            const isStill = now === last;
            last = now;
            return isStill;
          },
          { timeout: 30_000, interval: 500 },
        )
        .toBe(true);
      // What is on the way: sockets, pipes, and the engine's own buffers.
      expect(last * 1_000_000 - output.bytes).toBeLessThan(64_000_000);
      process.resume();
      await expect.poll(written, { timeout: 30_000 }).toBeGreaterThan(last);
      process.destroy();
      // By its own id: boxes may share the machine's processes, and its shell is everybody's.
      await text(box(), `kill -s KILL "$(cat ${file}.pid)" 2>/dev/null; true`);
    });

    test('destroying the streams settles them and does not kill the command', async () => {
      const sleep = newSleep();
      const { process } = await open(box(), `exec ${sleep}`);
      await expect.poll(async () => await countAlive(box(), sleep), { timeout: 20_000 }).toBe(1);
      process.destroy();
      await process.ended;
      expect(await countAlive(box(), sleep)).toBe(1);
      await killAlive(box(), sleep);
    });

    test('writing to a command that has ended neither throws nor waits', async () => {
      const { process } = await open(box(), 'exit 0');
      await process.ended;
      await process.write(Buffer.alloc(1_000_000));
      process.endInput();
      expect(await process.exitCode()).toBe(0);
      process.destroy();
    });

    test('streams of an aborted signal are refused with its reason', async () => {
      const { signal, reason, abort } = abortable();
      abort();
      await expect(open(box(), 'true', signal)).rejects.toBe(reason);
    });

    test('removing the box ends the streams of its commands', async () => {
      await using own = await bench().box();
      const { process, output } = await open(own, 'echo ready; sleep 600');
      await expect.poll(() => output.stdout, { timeout: 20_000 }).toBe('ready\n');
      await own.remove();
      await process.ended;
      expect(await own.state()).toBe('gone');
    });
  });
}
