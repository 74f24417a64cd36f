import { randomBytes } from 'node:crypto';
import type { Sandbox } from '@hermes-fleet/worker/sandbox/provider';
import { describe, expect, test } from 'vitest';
import { abortable, type Bench, codeOf, countAlive, deadline, killAlive, newSleep, run, shell, text } from './bench.ts';

const MIB = 1024 * 1024;
/** Characters of two, three and four bytes: no piece size below meets only whole ones. */
const LETTERS = 'é漢🙂';

/** Checks of one blocking command. */
export function execChecks(bench: () => Bench, box: () => Sandbox): void {
  describe('exec', () => {
    test.each([0, 1, 3, 124, 126, 127, 255])("exit code %i is the command's own", async (code) => {
      expect((await run(box(), `exit ${code}`)).exitCode).toBe(code);
    });

    test.each([
      ['KILL', 137],
      ['TERM', 143],
    ])('a command that dies of SIG%s has exit code %i', async (signal, code) => {
      expect((await run(box(), `kill -s ${signal} $$; sleep 60`)).exitCode).toBe(code);
    });

    test('a program that is missing is told by 126 or 127, or a typed error, and never by 0', async () => {
      const { exitCode, stdout, stderr } = await run(box(), ['/no/such/program', 'x']);
      expect([126, 127]).toContain(exitCode);
      expect(stdout.toString() + stderr.toString()).toMatch(/no such|not found|ENOENT/i);
    });

    test('a file that may not be executed has exit code 126', async () => {
      await box().putFiles([{ path: 'not-executable', content: Buffer.from('echo no\n') }], io());
      expect((await run(box(), [`${box().workdir}/not-executable`])).exitCode).toBe(126);
    });

    test('stdout and stderr are told apart', async () => {
      const result = await run(box(), 'echo out; echo err >&2; echo out2');
      expect([result.stdout.toString(), result.stderr.toString()]).toEqual(['out\nout2\n', 'err\n']);
      expect([result.stdoutBytes, result.stderrBytes]).toEqual([9, 4]);
    });

    test.each([1, 3, 4095, 65_537])('text that is written in pieces of %i bytes is byte-identical', async (piece) => {
      const whole = Buffer.from(LETTERS.repeat(piece === 1 ? 1000 : 22_223));
      await box().putFiles([{ path: `letters-${piece}`, content: whole }], io());
      const dd = `dd if=letters-${piece} bs=${piece} 2>/dev/null`;
      const { stdout, stderr } = await run(
        box(),
        `${dd} & { exec 4>&2; dd if=letters-${piece} bs=${piece} 2>/dev/null >&4; }; wait`,
      );
      expect(stdout.equals(whole)).toBe(true);
      expect(stderr.equals(whole)).toBe(true);
    });

    test('output of any bytes comes as it was written', async () => {
      const bytes = Buffer.concat([
        Buffer.from(Array.from({ length: 256 }, (_, byte) => byte)),
        randomBytes(64 * 1024),
      ]);
      await box().putFiles([{ path: 'bytes', content: bytes }], io());
      expect((await run(box(), 'cat bytes')).stdout.equals(bytes)).toBe(true);
    });

    test('200 MB of output are cut at the cap and counted to the last byte, in bounded memory', async () => {
      const before = process.memoryUsage.rss();
      let peak = before;
      const watch = setInterval(() => (peak = Math.max(peak, process.memoryUsage.rss())), 20);
      const result = await run(box(), 'head -c 200000000 /dev/zero; head -c 3000000 /dev/zero >&2', { maxBytes: 1000 });
      clearInterval(watch);
      expect([result.exitCode, result.stdout.length, result.stdoutBytes]).toEqual([0, 1000, 200_000_000]);
      expect([result.stderr.length, result.stderrBytes]).toEqual([1000, 3_000_000]);
      expect((peak - before) / MIB).toBeLessThan(150);
    });

    test('8 MB of stdin come back whole', async () => {
      const stdin = randomBytes(8 * MIB);
      expect((await run(box(), 'cat', { stdin })).stdout.equals(stdin)).toBe(true);
    });

    test('a command that does not read its 8 MB of stdin ends all the same', async () => {
      expect((await run(box(), 'exit 7', { stdin: Buffer.alloc(8 * MIB) })).exitCode).toBe(7);
    });

    test('without stdin a command reads the end of it at once', async () => {
      expect(await text(box(), 'cat; echo end')).toBe('end\n');
    });

    test('a command runs as the user that was asked for', async (context) => {
      const { otherUser = '' } = bench().fixture;
      context.skip(otherUser === '', 'the provider knows no users');
      expect(await text(box(), 'id -u', { user: otherUser })).toBe(`${otherUser}\n`);
    });

    test('values of the environment are kept to the byte', async () => {
      const value = `a b"c'd$(e)\`f\`\\g=h\n\t${LETTERS}`;
      expect(await text(box(), 'printf %s "$SOME_VALUE"', { env: { SOME_VALUE: value } })).toBe(value);
    });

    test('a command starts in the workdir, or where it was asked to', async () => {
      expect(await text(box(), 'pwd -P', { workdir: '/usr' }).catch(() => '/usr\n')).toBe('/usr\n');
      expect(await text(box(), 'mkdir -p sub && cd sub && pwd')).toBe(`${box().workdir}/sub\n`);
      expect(await text(box(), 'pwd', { workdir: `${box().workdir}/sub` })).toBe(`${box().workdir}/sub\n`);
    });

    test('a workdir that is missing is no success', async () => {
      const outcome = await run(box(), 'true', { workdir: '/no/such/folder' }).then(
        ({ exitCode }) => exitCode,
        () => 'refused',
      );
      expect(outcome).not.toBe(0);
    });

    test('the deadline kills a command with all that it started', async () => {
      const [child, session, main] = [newSleep(), newSleep(), newSleep()];
      const script = `${child} & setsid ${session} & echo before; ${main}`;
      const { exitCode, stdout } = await run(box(), script, { deadlineMs: 1500 });
      expect([exitCode, stdout.toString()]).toEqual([137, 'before\n']);
      for (const each of [child, session, main])
        await expect.poll(async () => await countAlive(box(), each), { timeout: 10_000 }).toBe(0);
    });

    test('an abort kills the command and rejects with the reason of the signal', async () => {
      const { signal, reason, abort } = abortable();
      const sleep = newSleep();
      const running = run(box(), `setsid ${sleep} & ${sleep}`, { signal });
      running.catch(() => undefined);
      await expect.poll(async () => await countAlive(box(), sleep), { timeout: 20_000 }).toBe(2);
      abort();
      await expect(running).rejects.toBe(reason);
      await expect.poll(async () => await countAlive(box(), sleep), { timeout: 10_000 }).toBe(0);
    });

    test('a command whose signal is aborted before it begins leaves no trace, at whatever moment', async () => {
      const early = abortable();
      early.abort();
      await expect(run(box(), 'touch began', { signal: early.signal })).rejects.toBe(early.reason);
      expect(await text(box(), 'ls')).not.toContain('began');
      // While the engine is still about it.
      const sleep = newSleep();
      for (const afterMs of [0, 5, 20, 60]) {
        const late = abortable();
        const running = run(box(), sleep, { signal: late.signal });
        setTimeout(late.abort, afterMs);
        await expect(running).rejects.toBe(late.reason);
      }
      await expect.poll(async () => await countAlive(box(), sleep), { timeout: 20_000, interval: 500 }).toBe(0);
    });

    test('a background child that holds the output does not hold the end of its command', async () => {
      const sleep = newSleep();
      const begun = performance.now();
      const { exitCode, stdout } = await run(box(), `${sleep} & echo started`);
      expect([exitCode, stdout.toString()]).toEqual([0, 'started\n']);
      expect(performance.now() - begun).toBeLessThan(12_000);
      expect(await countAlive(box(), sleep)).toBe(1);
      await killAlive(box(), sleep);
    });

    test('eight commands at once each get their own output', async () => {
      const numbers = Array.from({ length: 8 }, (_, index) => index);
      const outputs = await Promise.all(
        numbers.map(async (n) => await text(box(), `echo ${n}; cat`, { stdin: Buffer.from(String(n)) })),
      );
      expect(outputs).toEqual(numbers.map((n) => `${n}\n${n}`));
    });

    test('a command in a box that is gone is sandbox_lost', async () => {
      await using gone = await bench().box();
      await gone.remove();
      expect(
        await codeOf(gone.exec({ argv: shell(gone, 'true'), signal: deadline(), maxBytes: 1, deadlineMs: 30_000 })),
      ).toBe('infra/sandbox_lost');
    });
  });
}

const io = (): { readonly signal: AbortSignal; readonly deadlineMs: number } => ({
  signal: deadline(),
  deadlineMs: 30_000,
});
