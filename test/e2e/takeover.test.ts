import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { QUICK, startFleet, type TestFleet } from '../setup/fleet.ts';
import { heldSandbox } from '../setup/go.ts';
import { expectNothingLeft, processesIn } from '../setup/leaks.ts';
import { callTool, hold, say, turns } from '../setup/model-replies.ts';
import type { Program } from '../setup/processes.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: TestFleet;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl') });
});
// One worker is alive before and after each test, so that it is known which one has the command.
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => await fleet[Symbol.asyncDispose]());

const FIRST_AWAIT = { timeout: 15_000, interval: 50 };
/** Silence after which nobody may still be waiting: lock, look for stalled jobs, grace. */
const LIMIT_MS = ['FLEET_LOCK_MS', 'FLEET_STALLED_INTERVAL_MS', 'FLEET_TAKEOVER_GRACE_MS']
  .map((name) => Number(QUICK[name]))
  .reduce((sum, each) => sum + each, 0);

const activation = (id: string, activationId = 'a') => ({
  session_id: id,
  activation_id: activationId,
  request: { input: 'hi' },
});

async function kill(worker: Program | undefined): Promise<number> {
  worker?.process.kill('SIGKILL');
  await worker?.exited;
  return performance.now();
}

/** Resolves when the command has been begun once more, with the milliseconds since `from`. */
async function takenOver(worker: Program, commandId: string, from: number): Promise<number> {
  await worker.line((line) => line.includes('"command begun"') && line.includes(`"command_id":"${commandId}"`));
  const took = performance.now() - from;
  console.log(`${commandId} taken over after ${took.toFixed(0)} ms; lock + stalled + grace = ${LIMIT_MS} ms`);
  return took;
}

verifies(
  ['job:begun-again', 'job:once'],
  'a killed worker: what had used no tool runs again, what had is ended with its record, and nothing outlives them',
  async () => {
    const held = hold(say('done'));
    fleet.model.script('thinks', held.script);
    fleet.model.script(
      'acts',
      turns([callTool('terminal', { command: 'echo once >> acts; setsid sleep 1000 & sleep 1000' })]),
    );
    for (const id of ['thinks', 'acts'])
      await fleet.client.submit({ seed: fleet.seed(id, id), activations: [activation(id, id)] });
    await expect.poll(() => held.isHolding, FIRST_AWAIT).toBe(true);
    await expect
      .poll(
        async () => (await processesIn(fleet.root)).filter((each) => each.includes('sleep 1000')).length,
        FIRST_AWAIT,
      )
      .toBe(2);
    const [owner, other] = [fleet.workers.at(-1), await fleet.addWorker()];
    const killed = await kill(owner);
    const [thinks, acts] = await Promise.all([takenOver(other, 'thinks', killed), takenOver(other, 'acts', killed)]);
    held.release();
    expect(await fleet.client.wait('thinks', 'thinks')).toMatchObject({
      class: 'ok',
      body: { counts: { model_calls: 1 } },
    });
    const lost = await fleet.client.wait('acts', 'acts');
    expect(lost).toMatchObject({ class: 'infra', code: 'worker_lost', retryable: true, reward_valid: false });
    expect(lost.body).toMatchObject({ complete: false, counts: { model_calls: 1, tool_calls: 1 } });
    expect(lost.body).toMatchObject({ response: { output: [{ type: 'function_call', name: 'terminal' }] } });
    expect(await processesIn(fleet.root)).toEqual([]);
    expect(Math.max(thinks, acts)).toBeLessThan(LIMIT_MS + 1_000);
    for (const id of ['thinks', 'acts']) expect((await fleet.client.close({ session_id: id })).class).toBe('ok');
  },
);

verifies(
  ['job:begun-again', 'seed:no-debris'],
  'a worker killed while it makes a sandbox: another makes a new one, and the half-made one goes',
  async () => {
    const held = heldSandbox();
    await fleet.client.submit({ seed: fleet.seed('seed', 'echo', { sandbox: held.sandbox }) });
    await expect
      .poll(async () => await fleet.client.status('seed'), FIRST_AWAIT)
      .toMatchObject({ commands: [{ state: 'running' }] });
    const [owner, other] = [fleet.workers.at(-1), await fleet.addWorker()];
    await takenOver(other, 'seed', await kill(owner));
    await held.go();
    expect((await fleet.client.wait('seed', 'seed')).class).toBe('ok');
    expect((await fleet.client.close({ session_id: 'seed' })).class).toBe('ok');
  },
);

verifies(
  'cancel:signal',
  'a cancel of a command whose worker is dead is honoured by the one that takes it over',
  async () => {
    const held = hold(say('never'));
    fleet.model.script('dead', held.script);
    await fleet.client.submit({
      seed: fleet.seed('dead', 'dead'),
      activations: [activation('dead'), activation('dead', 'b')],
    });
    await expect.poll(() => held.isHolding, FIRST_AWAIT).toBe(true);
    await kill(fleet.workers.at(-1));
    expect(await fleet.client.cancel({ sessionId: 'dead', commandId: 'a' })).toEqual({ accepted: true });
    await fleet.addWorker();
    expect(await fleet.client.wait('dead', 'a')).toMatchObject({ class: 'cancelled', code: 'by_caller' });
    held.release();
    expect((await fleet.client.wait('dead', 'b')).class).toBe('ok');
    await fleet.client.close({ session_id: 'dead' });
  },
);

verifies('job:once', 'connections to Redis that are cut again and again cost no result and no worker', async () => {
  const held = hold(say('done'));
  fleet.model.script('cut off', held.script);
  const ids = Array.from({ length: 8 }, (_, index) => `cut off/${index}`);
  for (const id of ids) await fleet.client.submit({ seed: fleet.seed(id, 'cut off'), activations: [activation(id)] });
  await expect.poll(() => fleet.model.callsOf('cut off').length, FIRST_AWAIT).toBe(ids.length);
  const admin = new Redis(inject('redisUrl'));
  for (let round = 0; round < 10; round++) {
    for (const kind of ['normal', 'pubsub']) await admin.call('CLIENT', 'KILL', 'TYPE', kind, 'SKIPME', 'yes');
    if (round === 5) held.release();
    await sleep(100);
  }
  admin.disconnect();
  for (const id of ids) expect(await fleet.client.wait(id, 'a')).toMatchObject({ class: 'ok' });
  expect(fleet.model.callsOf('cut off')).toHaveLength(ids.length);
  expect(fleet.workers.at(-1)?.process.exitCode).toBeNull();
  for (const id of ids) await fleet.client.close({ session_id: id });
});

verifies(
  ['job:once', 'job:begun-again'],
  'SIGTERM takes nothing new and lets what runs finish, well beyond its lock; then the process ends with 0',
  async () => {
    const held = hold(say('done'));
    fleet.model.script('drained', held.script);
    await fleet.client.submit({
      seed: fleet.seed('drained', 'drained'),
      activations: [activation('drained'), activation('drained', 'b')],
    });
    await expect.poll(() => held.isHolding, FIRST_AWAIT).toBe(true);
    const [leaving, other] = [fleet.workers.at(-1), await fleet.addWorker()];
    leaving?.process.kill('SIGTERM');
    await leaving?.line((line) => line.includes('"worker draining"'));
    await fleet.client.seed(fleet.seed('new'));
    expect(other.output()).toContain('"command_id":"seed"');
    // When its lock would have run out it is still the only one that runs it.
    const until = performance.now() + 1.5 * Number(QUICK['FLEET_LOCK_MS']);
    await expect.poll(() => performance.now() > until, { timeout: 20_000 }).toBe(true);
    held.release();
    expect((await fleet.client.wait('drained', 'a')).class).toBe('ok');
    expect(await leaving?.exited).toBe(0);
    expect((await fleet.client.wait('drained', 'b')).class).toBe('ok');
    expect(fleet.model.callsOf('drained')).toHaveLength(2);
    expect(leaving?.output()).not.toContain('unhandled');
    for (const id of ['drained', 'new']) await fleet.client.close({ session_id: id });
  },
);

verifies(
  ['job:begun-again', 'job:once'],
  'after the drain time, or on a second SIGTERM, running commands go to another worker at once',
  async () => {
    for (const [round, env] of [{ FLEET_DRAIN_MS: '200' }, {}].entries()) {
      const leaving = fleet.workers.at(-1);
      const held = hold(say('done'));
      const [thinks, acts] = [`thinks.${round}`, `acts.${round}`];
      fleet.model.script(thinks, held.script);
      fleet.model.script(acts, callTool('terminal', { command: 'setsid sleep 1000 & sleep 1000' }));
      for (const id of [thinks, acts])
        await fleet.client.submit({ seed: fleet.seed(id, id), activations: [activation(id, id)] });
      await expect.poll(() => held.isHolding, FIRST_AWAIT).toBe(true);
      await expect.poll(async () => (await processesIn(fleet.root)).length, FIRST_AWAIT).toBeGreaterThan(1);
      const other = await fleet.addWorker(env);
      leaving?.process.kill('SIGTERM');
      await leaving?.line((line) => line.includes('"worker draining"'));
      if (round === 0) leaving?.process.kill('SIGTERM');
      const told = performance.now();
      expect(await fleet.client.wait(acts, acts)).toMatchObject({
        class: 'infra',
        code: 'worker_lost',
        body: { counts: { tool_calls: 1 } },
      });
      expect(await takenOver(other, thinks, told)).toBeLessThan(2_500);
      held.release();
      expect((await fleet.client.wait(thinks, thinks)).class).toBe('ok');
      expect(await leaving?.exited).toBe(0);
      for (const id of [thinks, acts]) await fleet.client.close({ session_id: id });
    }
  },
);

verifies(
  ['seed:no-debris', 'session:expiry'],
  'a fleet that was killed whole leaves nothing once a new one has come',
  async () => {
    const ids = Array.from({ length: 4 }, (_, index) => `orphan/${index}`);
    fleet.model.script('sleeper', callTool('terminal', { command: 'setsid sleep 1000 & sleep 1000' }));
    await Promise.all(
      ids.map(async (id) => {
        const seed = fleet.seed(id, 'sleeper', { timeouts: { session_ttl_s: 8 } });
        await fleet.client.submit({ seed, activations: [activation(id)] });
      }),
    );
    await expect
      .poll(
        async () => (await processesIn(fleet.root)).filter((each) => each.includes('sleep 1000')).length,
        FIRST_AWAIT,
      )
      .toBe(8);
    await Promise.all(fleet.workers.map(async (worker) => await kill(worker)));
    await fleet.addWorker();
    for (const id of ids) {
      const { class: resultClass, code } = await fleet.client.wait(id, 'a');
      expect(['infra/worker_lost', 'cancelled/expired']).toContain(`${resultClass}/${code}`);
    }
  },
);
