import { readdir } from 'node:fs/promises';
import type { Sandbox } from '@hermes-fleet/worker/sandbox/provider';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { Bench, deadline, newSleep, type ProviderFixture, text } from '../conformance/bench.ts';
import { withoutStreams } from '../conformance/provider.ts';
import { type BrokerBench, openBroker } from '../setup/broker-bench.ts';
import { type Place, PLACES, removeLeftovers } from '../setup/broker-places.ts';
import { verifies } from '../setup/verifies.ts';

const timed = async <T>(work: Promise<T>): Promise<{ readonly value: T; readonly ms: number }> => {
  const begun = performance.now();
  return { value: await work, ms: performance.now() - begun };
};

afterAll(removeLeftovers);

describe.each(Object.keys(PLACES))('the broker in %s', (name) => {
  let place: Place;
  let box: Sandbox;
  let bench: BrokerBench;

  const newBox = async (): Promise<Sandbox> => {
    const spec = new Bench({ spec: { image: place.image, limits: place.limits } } as ProviderFixture).spec();
    return await place.provider.create(spec, { signal: deadline() });
  };
  const alive = async (command: string): Promise<number> =>
    (await place.processes(box)).filter((line) => line.replaceAll('\0', ' ').trim() === command).length;
  const untilAlive = async (command: string, count: number): Promise<void> =>
    await expect.poll(async () => await alive(command), { timeout: 20_000 }).toBe(count);

  beforeAll(async () => {
    const open = PLACES[name];
    if (open === undefined) throw new Error(`there is no ${name}`);
    place = await open();
    box = await newBox();
    bench = await openBroker({ redisUrl: inject('redisUrl'), sandbox: box });
  });
  afterAll(async () => {
    await bench[Symbol.asyncDispose]();
    await box.remove();
    await place.close();
  });

  test.each([
    ['true', 0],
    ['false', 1],
    ['exit 3', 3],
    ['exec sh -c "exit 9"', 9],
    ['no-such-program', 127],
    ['kill -9 $$', 137],
    ['set -e; false; echo not reached', 1],
    ['if', 2],
    ['sh -c "kill -9 \\$\\$"', 137],
    ['f() { return 5; }; f', 5],
  ])('%s ends with %i', async (command, code) => {
    expect((await bench.run(command)).code).toBe(code);
  });

  test('output is what was printed, stderr in its place, and no mark of ours', async () => {
    expect(await bench.run('echo one; echo two >&2; printf three')).toMatchObject({
      output: 'one\ntwo\nthree',
      code: 0,
    });
    expect((await bench.run('true')).output).toBe('');
    expect((await bench.run('env; set; jobs -l; ps -o args 2>/dev/null')).output).not.toMatch(/not found/);
  });

  verifies('session:many-activations', 'directory and exports stay between commands', async () => {
    const { cwd } = await bench.run('mkdir -p "sub dir" && cd "sub dir" && export KEPT="a b\'c\n漢"');
    expect(cwd).toBe(`${box.workdir}/sub dir`);
    expect(await bench.run('pwd; printf %s "$KEPT"', { cwd })).toMatchObject({ output: `${cwd}\na b'c\n漢`, cwd });
    await bench.run('export KEPT=after; exit 4');
    expect((await bench.run('printf %s "$KEPT"; unset KEPT')).output).toBe('after');
  });

  test('a directory that is gone is told, and not run in another', async () => {
    const { code, output } = await bench.run('echo ran', { cwd: '/no/such/folder' });
    expect([code, output.includes('ran')]).toEqual([126, false]);
  });

  test('a command that replaces its shell is seen to its end', async () => {
    const { value, ms } = await timed(bench.run('exec sleep 1'));
    expect(value.code).toBe(0);
    expect(ms).toBeGreaterThan(900);
  });

  verifies(
    'hermes:stop',
    'a background child does not hold its command, and can be killed with all of its own',
    async () => {
      const sleep = newSleep();
      const { value, ms } = await timed(bench.run(`(${sleep} & ${sleep}) & echo started`, { id: 901 }));
      expect(value).toMatchObject({ output: 'started\n', code: 0 });
      expect(ms).toBeLessThan(8000);
      await untilAlive(sleep, 2);
      await bench.broker.kill(90);
      expect(await alive(sleep)).toBe(2);
      await bench.broker.kill(901);
      await untilAlive(sleep, 0);
    },
  );

  test('a time-out kills what has left its session too, and keeps what was printed', async () => {
    const sleep = newSleep();
    const { value, ms } = await timed(
      bench.run(`echo before; setsid sh -c '${sleep}; true' & ${sleep}`, { timeoutS: 1 }),
    );
    expect(value).toMatchObject({
      code: 124,
      output: expect.stringMatching(/^before\n.*timed out after 1s/s) as string,
    });
    expect(ms).toBeLessThan(10_000);
    await untilAlive(sleep, 0);
  });

  verifies('cancel:signal', 'a cancel ends a command within a second', async () => {
    const sleep = newSleep();
    const running = bench.run(`setsid ${sleep} & ${sleep}`, { id: 910 });
    await untilAlive(sleep, 2);
    bench.broker.cancel(910);
    const { value, ms } = await timed(running);
    expect(value).toMatchObject({ code: 130, output: expect.stringContaining('[Command interrupted]') as string });
    expect(ms).toBeLessThan(3000);
    await untilAlive(sleep, 0);
  });

  test('a cancel in the moment of the beginning ends a command all the same', async () => {
    const sleep = newSleep();
    const running = bench.run(sleep, { id: 911 });
    bench.broker.cancel(911);
    expect((await running).code).toBe(130);
    await untilAlive(sleep, 0);
  });

  test('a cancel after the end, or of a command that never was, is nothing', async () => {
    expect((await bench.run('echo done', { id: 912 })).code).toBe(0);
    bench.broker.cancel(912);
    bench.broker.cancel(99_999);
    expect((await bench.run('echo next')).output).toBe('next\n');
  });

  test('a cancel ends a command that has input of its own, and an internal one', async () => {
    for (const more of [
      { id: 913, stdin: 'x' },
      { id: 914, isInternal: true },
    ]) {
      const sleep = newSleep();
      const running = bench.run(`${sleep}; true`, more);
      await untilAlive(sleep, 1);
      bench.broker.cancel(more.id);
      const { value, ms } = await timed(running);
      expect([value.code, ms < 5000]).toEqual([130, true]);
      await untilAlive(sleep, 0);
    }
  });

  test('internal commands share a shell that leaves nothing of one in the next, and is replaced when it dies', async () => {
    const internal = async (command: string): Promise<string> =>
      (await bench.run(command, { isInternal: true })).output.trim();
    const first = await internal('echo $PPID; cd /; export LEFT=x');
    expect(await internal('echo $PPID')).toBe(first);
    expect(await internal('pwd; echo "[$LEFT]"')).toBe(`${box.workdir}\n[]`);
    expect((await bench.run('exit 7', { isInternal: true })).code).toBe(7);
    await text(box, `kill -9 ${first}`);
    await expect.poll(async () => await internal('echo alive'), { timeout: 20_000 }).toBe('alive');
    expect(await internal('echo $PPID')).not.toBe(first);
  });

  test('an internal command over its time is killed', async () => {
    const sleep = newSleep();
    const { value, ms } = await timed(bench.run(`${sleep}; true`, { isInternal: true, timeoutS: 1 }));
    expect(value.code).toBe(124);
    expect(ms).toBeLessThan(10_000);
    await untilAlive(sleep, 0);
  });

  test('commands run at the same time, each with its own output', async () => {
    const numbers = Array.from({ length: 6 }, (_, index) => index);
    const outputs = await Promise.all(
      numbers.map(async (n) => (await bench.run(`echo ${n}`, { isInternal: n % 2 === 1 })).output),
    );
    expect(outputs).toEqual(numbers.map((n) => `${n}\n`));
  });

  verifies('model:capture', 'every command is in the journal with what it printed', async () => {
    await bench.run('echo recorded; exit 6', { id: 920 });
    const act = (await bench.acts()).at(-1);
    expect(act).toMatchObject({
      kind: 'tool',
      intent: { internal: false },
      outcome: { code: 6, status: 'completed', bytes: 9 },
    });
  });

  verifies('seed:own', 'what the broker keeps in a box goes with it', async () => {
    const own = await newBox();
    const other = await openBroker({ redisUrl: inject('redisUrl'), sandbox: own });
    await other.run('export SECRET=x');
    await other[Symbol.asyncDispose]();
    await own.remove();
    expect((await readdir('/tmp')).filter((file) => file.includes(other.sessionKey.slice(0, 12)))).toEqual([]);
  });

  verifies('close:stops-first', 'killAll leaves no process of the activation, seen from outside', async () => {
    const own = await openBroker({ redisUrl: inject('redisUrl'), sandbox: box });
    const sleep = newSleep();
    await own.run('true', { isInternal: true });
    await own.run(`setsid ${sleep} >/dev/null 2>&1 & (${sleep} &) ; true`);
    const running = own.run(`trap '' TERM INT HUP; while :; do ${sleep}; done`);
    await untilAlive(sleep, 3);
    await own.broker.killAll();
    await running;
    await own[Symbol.asyncDispose]();
    await untilAlive(sleep, 0);
    await bench.broker.killAll();
    await expect.poll(async () => await place.processes(box), { timeout: 10_000 }).toEqual([]);
  });

  verifies(
    'job:begun-again',
    'a new owner ends what its forerunner left, and the forerunner can do nothing any more',
    async () => {
      const { sessionKey } = bench;
      const old = await openBroker({ redisUrl: inject('redisUrl'), sandbox: box, sessionKey, epoch: '5', number: '7' });
      const sleep = newSleep();
      await old.run(`setsid ${sleep} >/dev/null 2>&1 &`);
      const next = await openBroker({
        redisUrl: inject('redisUrl'),
        sandbox: box,
        sessionKey,
        epoch: '6',
        number: '7',
      });
      await next.broker.takeOver();
      await untilAlive(sleep, 0);
      expect((await old.run('echo late')).code).toBe(125);
      await expect(old.broker.takeOver()).rejects.toMatchObject({ code: 'internal/fenced' });
      expect((await next.run('echo mine')).output).toBe('mine\n');
      await old[Symbol.asyncDispose]();
      await next[Symbol.asyncDispose]();
    },
  );

  verifies('job:once', 'a run that was fenced begins no command', async () => {
    const own = await openBroker({ redisUrl: inject('redisUrl'), sandbox: box });
    await own.fence();
    await expect(own.run('touch fenced')).rejects.toMatchObject({ code: 'internal/fenced' });
    expect(await text(box, 'ls')).not.toContain('fenced');
    await own[Symbol.asyncDispose]();
  });

  test('a box that is removed under a command is sandbox_lost, and stays so', async () => {
    const own = await newBox();
    const lost = await openBroker({ redisUrl: inject('redisUrl'), sandbox: own });
    const running = lost.run('touch began; sleep 600').catch((error: unknown) => error);
    await expect.poll(async () => await text(own, 'ls'), { timeout: 20_000 }).toContain('began');
    await own.remove();
    const { value, ms } = await timed(running);
    expect(value).toMatchObject({ code: 'infra/sandbox_lost' });
    expect(ms).toBeLessThan(15_000);
    expect(lost.broker.failure?.code).toBe('infra/sandbox_lost');
    await lost.broker.killAll();
    await lost[Symbol.asyncDispose]();
  });

  verifies('hermes:one-exec', 'a provider with nothing but a blocking exec serves as well', async () => {
    const connected = await withoutStreams(place.provider).connect(box.descriptor, { signal: deadline() });
    const plain = await openBroker({ redisUrl: inject('redisUrl'), sandbox: connected });
    expect(await plain.run('cat; export SLOW=1; cd /tmp; exit 3', { stdin: 'in\n' })).toMatchObject({
      output: 'in\n',
      code: 3,
    });
    expect((await plain.run('echo $SLOW', { isInternal: true })).output).toBe('1\n');
    const sleep = newSleep();
    expect((await plain.run(`echo before; ${sleep}`, { timeoutS: 1 })).output).toMatch(/^before\n/);
    await untilAlive(sleep, 0);
    const cut = await plain.run('head -c 300000 /dev/zero | tr "\\000" x; echo; echo last; exit 2', { cap: 1000 });
    expect(cut).toMatchObject({ code: 2, output: expect.stringMatching(/OUTPUT TRUNCATED.*last\n$/s) as string });
    await plain[Symbol.asyncDispose]();
  });

  test('a command costs little more than a bare exec', async () => {
    const bare: number[] = [];
    const brokered: number[] = [];
    const internal: number[] = [];
    const exec = { argv: [box.shell.path, '-c', 'true'], maxBytes: 10, deadlineMs: 30_000 };
    for (let times = 0; times < 15; times++) {
      bare.push((await timed(box.exec({ ...exec, signal: deadline() }))).ms);
      brokered.push((await timed(bench.run('true'))).ms);
      internal.push((await timed(bench.run('true', { isInternal: true }))).ms);
    }
    const median = (values: number[]): number => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
    const [plain, ours, shared] = [median(bare), median(brokered), median(internal)];
    // eslint-disable-next-line no-console -- the ratio is the point
    console.info(
      `${name}: bare ${plain.toFixed(1)} ms, command ${(ours / plain).toFixed(2)}x, internal ${(shared / plain).toFixed(2)}x`,
    );
    // A child process costs next to nothing: there the journal is most of it.
    expect(place.provider.isolates ? ours / plain : 0).toBeLessThan(4);
  });
});
