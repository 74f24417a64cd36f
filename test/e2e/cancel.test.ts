import { setTimeout as sleep } from 'node:timers/promises';
import { sessionKey } from '@hermes-fleet/shared';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { heldSandbox } from '../setup/go.ts';
import { expectNothingLeft, processesIn } from '../setup/leaks.ts';
import { callTool, hold, say, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

const SLEEPS = 'setsid sleep 1000 & trap "" TERM; sleep 1000';

let fleet: TestFleet;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 3 });
  fleet.model.script('sleeper', callTool('terminal', { command: SLEEPS }));
});
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => await fleet[Symbol.asyncDispose]());

const activation = (id: string, activationId = 'a', input = 'hi') => ({
  session_id: id,
  activation_id: activationId,
  request: { input },
});
const cancel = async (id: string, commandId = 'a', of = fleet) => await of.client.cancel({ sessionId: id, commandId });
const stateOf = async (id: string, commandId: string): Promise<string | undefined> =>
  (await fleet.client.status(id)).commands.find((command) => command.id === commandId)?.state;
const sleepersOf = async (id: string): Promise<string[]> =>
  (await processesIn(`${fleet.root}/${sessionKey(id)}`)).filter((each) => each.includes('sleep 1000'));
const byCaller = { class: 'cancelled', code: 'by_caller' };

verifies('cancel:signal', 'a cancel that comes before its command ends it when it comes', async () => {
  expect(await cancel('before', 'a')).toEqual({ accepted: true, isAhead: true });
  expect(await cancel('before seed', 'seed')).toEqual({ accepted: true, isAhead: true });
  await fleet.client.submit({ seed: fleet.seed('before'), activations: [activation('before')] });
  expect(await fleet.client.wait('before', 'a')).toMatchObject(byCaller);
  expect((await fleet.client.wait('before', 'seed')).class).toBe('ok');
  expect(await fleet.client.seed(fleet.seed('before seed'))).toMatchObject(byCaller);
  expect(await fleet.client.activate(activation('before seed'))).toMatchObject(byCaller);
  for (const id of ['before', 'before seed']) await fleet.client.close({ session_id: id });
});

verifies('cancel:signal', 'a waiting command is cancelled at once, and the running one goes on', async () => {
  const held = hold(say('done'));
  fleet.model.script('parked', held.script);
  await fleet.client.submit({
    seed: fleet.seed('parked', 'parked'),
    activations: [activation('parked', 'a'), activation('parked', 'b')],
  });
  await expect.poll(() => held.isHolding).toBe(true);
  expect(await cancel('parked', 'b')).toEqual({ accepted: true });
  expect(await fleet.client.wait('parked', 'b')).toMatchObject(byCaller);
  held.release();
  expect((await fleet.client.wait('parked', 'a')).class).toBe('ok');
  expect(await cancel('parked', 'a')).toEqual({ accepted: false });
  expect((await fleet.client.wait('parked', 'a')).class).toBe('ok');
  expect(await cancel('parked', 'b')).toEqual({ accepted: true });
  await fleet.client.close({ session_id: 'parked' });
});

verifies(
  ['cancel:signal', 'close:always'],
  'without any worker a session is cancelled and closed at once',
  async () => {
    await using idle = await startFleet({ redisUrl: inject('redisUrl'), workers: 0 });
    await idle.client.submit({ seed: idle.seed('no worker'), activations: [activation('no worker')] });
    expect((await idle.client.status('no worker')).waiting_for).toMatch(/none is alive/);
    expect(await cancel('no worker', 'seed', idle)).toEqual({ accepted: true });
    for (const id of ['seed', 'a']) expect(await idle.client.wait('no worker', id)).toMatchObject(byCaller);
    const closed = { class: 'ok', code: 'nothing_to_close' };
    expect(await idle.client.close({ session_id: 'no worker' })).toMatchObject(closed);
    await idle.client.submit({ seed: idle.seed('close'), activations: [activation('close')] });
    await idle.client.cancel({ sessionId: 'close' });
    expect(await idle.client.wait('close', 'seed')).toMatchObject({ class: 'cancelled', code: 'by_close' });
    expect(await idle.client.wait('close', 'close')).toMatchObject(closed);
    // The jobs that nobody took find nothing to do.
    await idle.addWorker();
    await expectNothingLeft(idle);
  },
);

verifies(['cancel:signal', 'seed:no-debris'], 'a seed is cancelled while its sandbox is being made', async () => {
  const { sandbox } = heldSandbox();
  await fleet.client.submit({ seed: fleet.seed('seeding', 'echo', { sandbox }), activations: [activation('seeding')] });
  await expect.poll(async () => await stateOf('seeding', 'seed')).toBe('running');
  expect(await cancel('seeding', 'seed')).toEqual({ accepted: true });
  for (const id of ['seed', 'a']) expect(await fleet.client.wait('seeding', id)).toMatchObject(byCaller);
  await fleet.client.close({ session_id: 'seeding' });
});

verifies(
  'cancel:signal',
  'a cancel in the middle of a model call closes the request and keeps what was said before',
  async () => {
    const held = hold(say('never'));
    fleet.model.script('second call', turns([callTool('terminal', { command: 'echo one' }), held.script]));
    await fleet.client.submit({ seed: fleet.seed('model', 'second call'), activations: [activation('model')] });
    await expect.poll(() => held.isHolding).toBe(true);
    expect(await cancel('model')).toEqual({ accepted: true });
    const result = await fleet.client.wait('model', 'a');
    expect(result).toMatchObject({ ...byCaller, body: { counts: { model_calls: 1, tool_calls: 1 } } });
    const request = fleet.model.callsOf('second call').at(-1);
    await expect.poll(() => request?.abortedAt).toBeDefined();
    held.release();
    const next = fleet.model.callsOf('second call').length;
    expect((await fleet.client.activate(activation('model', 'b', 'again'))).class).toBe('ok');
    expect(fleet.model.callsOf('second call').length).toBeGreaterThan(next);
    await fleet.client.close({ session_id: 'model' });
  },
);

verifies('cancel:signal', 'a cancel is told to nobody but its command, and a close cannot be cancelled', async () => {
  await fleet.client.seed(fleet.seed('closing'));
  await fleet.client.close({ session_id: 'closing' });
  await expect(cancel('closing', 'close')).rejects.toMatchObject({ code: 'refused/invalid' });
});

verifies(
  'cancel:signal',
  'every process of a cancelled command is gone within a second, and neighbours go on',
  async () => {
    const held = hold(say('neighbour'));
    fleet.model.script('neighbour', held.script);
    await fleet.client.submit({ seed: fleet.seed('neighbour', 'neighbour'), activations: [activation('neighbour')] });
    const ids = Array.from({ length: 10 }, (_, index) => `tool/${index}`);
    await Promise.all(
      ids.map(
        async (id) => await fleet.client.submit({ seed: fleet.seed(id, 'sleeper'), activations: [activation(id)] }),
      ),
    );
    const took: number[] = [];
    for (const id of ids) {
      await expect.poll(async () => await sleepersOf(id), { interval: 20, timeout: 10_000 }).toHaveLength(2);
      expect(await cancel(id)).toEqual({ accepted: true });
      const accepted = performance.now();
      await expect
        .poll(async () => await processesIn(`${fleet.root}/${sessionKey(id)}`), { interval: 5, timeout: 5_000 })
        .toEqual([]);
      took.push(performance.now() - accepted);
    }
    took.sort((one, other) => one - other);
    console.log(`cancel accepted -> nothing alive: median ${took[5]?.toFixed(0)} ms, p95 ${took[9]?.toFixed(0)} ms`);
    expect(took[9]).toBeLessThan(1000);
    for (const id of ids)
      expect(await fleet.client.wait(id, 'a')).toMatchObject({ ...byCaller, body: { counts: { tool_calls: 1 } } });
    held.release();
    expect((await fleet.client.wait('neighbour', 'a')).class).toBe('ok');
    for (const id of [...ids, 'neighbour']) await fleet.client.close({ session_id: id });
  },
);

verifies(
  ['cancel:signal', 'result:class'],
  'cancels that race the start and the end of a command give exactly one result each',
  async () => {
    const id = 'race';
    await fleet.client.seed(fleet.seed(id));
    const rounds = Array.from({ length: 60 }, (_, index) => `r${index}`);
    const classes = await Promise.all(
      rounds.map(async (round, index) => {
        await sleep(index * 25);
        await fleet.client.submit({ activations: [activation(id, round, round)] });
        await sleep((index * 7) % 31);
        const { accepted } = await cancel(id, round);
        const result = await fleet.client.wait(id, round);
        expect(result.class).toBe(accepted ? 'cancelled' : 'ok');
        return result.class;
      }),
    );
    console.log(`raced: ${classes.filter((each) => each === 'ok').length} ok of ${classes.length}`);
    await fleet.client.close({ session_id: id });
  },
);

verifies('cancel:signal', 'cancels are honoured while the pub/sub connections are being cut', async () => {
  const held = hold(say('spared'));
  fleet.model.script('cut', held.script);
  const ids = Array.from({ length: 12 }, (_, index) => `cut/${index}`);
  await Promise.all(
    ids.map(async (id) => await fleet.client.submit({ seed: fleet.seed(id, 'cut'), activations: [activation(id)] })),
  );
  await expect.poll(() => fleet.model.callsOf('cut').length, { timeout: 10_000 }).toBe(12);
  const admin = new Redis(inject('redisUrl'));
  const cutting = setInterval(() => void admin.call('CLIENT', 'KILL', 'TYPE', 'pubsub'), 30);
  const begun = performance.now();
  for (const id of ids.slice(0, 5)) expect(await cancel(id)).toEqual({ accepted: true });
  for (const id of ids.slice(0, 5)) expect(await fleet.client.wait(id, 'a')).toMatchObject(byCaller);
  const took = performance.now() - begun;
  clearInterval(cutting);
  admin.disconnect();
  console.log(`5 cancels without pub/sub: ${took.toFixed(0)} ms`);
  expect(took).toBeLessThan(5_000);
  held.release();
  for (const id of ids.slice(5)) expect((await fleet.client.wait(id, 'a')).class).toBe('ok');
  await Promise.all(ids.map(async (id) => await fleet.client.close({ session_id: id })));
});

verifies('cancel:signal', 'cancelling a sweep ends its sessions, and refuses those that come later', async () => {
  const identity = { sweep_id: 'sweep' };
  for (const id of ['s/1', 's/2'])
    await fleet.client.submit({ seed: fleet.seed(id, 'sleeper', { identity }), activations: [activation(id)] });
  await expect.poll(async () => await sleepersOf('s/2')).toHaveLength(2);
  expect(await fleet.client.cancel({ sweepId: 'sweep' })).toMatchObject({
    accepted: true,
    sessions: expect.any(Number) as number,
  });
  for (const id of ['s/1', 's/2']) {
    expect(await fleet.client.wait(id, 'a')).toMatchObject({ class: 'cancelled', code: 'by_close' });
    expect((await fleet.client.wait(id, 'close')).class).toBe('ok');
  }
  const late = fleet.client.seed(fleet.seed('s/3', 'sleeper', { identity }));
  await expect(late).rejects.toMatchObject({ code: 'refused/session_closed' });
});
