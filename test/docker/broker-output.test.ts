import { randomBytes } from 'node:crypto';
import type { Sandbox } from '@hermes-fleet/worker/sandbox/provider';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { Bench, deadline, type ProviderFixture } from '../conformance/bench.ts';
import { type BrokerBench, openBroker } from '../setup/broker-bench.ts';
import { type Place, PLACES, removeLeftovers } from '../setup/broker-places.ts';

const MIB = 1024 * 1024;

afterAll(removeLeftovers);

describe.each(Object.keys(PLACES))('input and output of commands in %s', (name) => {
  let place: Place;
  let box: Sandbox;
  let bench: BrokerBench;

  beforeAll(async () => {
    const open = PLACES[name];
    if (open === undefined) throw new Error(`there is no ${name}`);
    place = await open();
    const spec = new Bench({ spec: { image: place.image, limits: place.limits } } as ProviderFixture).spec();
    box = await place.provider.create(spec, { signal: deadline() });
    bench = await openBroker({ redisUrl: inject('redisUrl'), sandbox: box });
  });
  afterAll(async () => {
    await bench[Symbol.asyncDispose]();
    await box.remove();
    await place.close();
  });

  test('a gigabyte of output stays in bounded memory, and says how much was left out', async () => {
    const before = process.memoryUsage.rss();
    let peak = before;
    const watch = setInterval(() => (peak = Math.max(peak, process.memoryUsage.rss())), 20);
    const command = 'echo first; head -c 1000000000 /dev/zero; echo; echo last';
    const { code, output } = await bench.run(command, { cap: 100_000, timeoutS: 110 });
    clearInterval(watch);
    expect(code).toBe(0);
    expect(output.length).toBeLessThan(101_000);
    expect(output.replaceAll('\0', 'x')).toMatch(
      /^first\nx+\n\n\.\.\. \[OUTPUT TRUNCATED - \d+ bytes omitted out of 1000000012\] \.\.\.\n\nx+\nlast\n$/,
    );
    expect((peak - before) / MIB).toBeLessThan(300);
  });

  test('an endless line is bounded, and ends at its time-out', async () => {
    const { code, output } = await bench.run('while :; do printf 0123456789; done', { timeoutS: 2, cap: 5000 });
    expect(code).toBe(124);
    expect(output.length).toBeLessThan(6000);
  });

  test.each([4000, 4001, 4002, 4003, 4004])('a cut at %i bytes splits no character', async (cap) => {
    await box.putFiles([{ path: 'letters', content: Buffer.from('é漢🙂'.repeat(5000)) }], {
      signal: deadline(),
      deadlineMs: 30_000,
    });
    const { output } = await bench.run('cat letters', { cap });
    expect(output).toContain('OUTPUT TRUNCATED');
    expect(output).not.toContain('\u{fffd}');
  });

  test('bytes that are not UTF-8, NUL, escapes and lone CR are kept as text', async () => {
    expect((await bench.run(`printf 'a\\377b\\000c\\033[1md\\re'`)).output).toBe('a\u{fffd}b\0c\u{1b}[1md\re');
    await box.putFiles([{ path: 'noise', content: randomBytes(64 * 1024) }], {
      signal: deadline(),
      deadlineMs: 30_000,
    });
    const { code, output } = await bench.run('cat noise');
    expect(code).toBe(0);
    expect(JSON.parse(JSON.stringify(output))).toBe(output);
  });

  test.each([false, true])('input of any size arrives (internal: %s)', async (isInternal) => {
    for (const stdin of ['', 'no newline', 'it\'s `$(id)` \\ "\n', 'é漢🙂\n'.repeat(3000), 'x'.repeat(3_000_000)]) {
      const { code, output } = await bench.run('cat >input; wc -c <input', { stdin, isInternal });
      expect([code, Number(output)]).toEqual([0, Buffer.byteLength(stdin)]);
      expect((await bench.run('cat input', { cap: 8 * MIB, isInternal })).output).toBe(stdin);
    }
  });
});
