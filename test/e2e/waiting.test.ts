import { FleetClient } from '@hermes-fleet/producer';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { expectNothingLeft } from '../setup/leaks.ts';
import { hold, say } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: TestFleet;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 2 });
});
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => await fleet[Symbol.asyncDispose]());

const connect = async (): Promise<FleetClient> =>
  await FleetClient.connect({ redisUrl: inject('redisUrl'), fleetId: fleet.id });
const activation = (id: string, activationId: string) => ({
  session_id: id,
  activation_id: activationId,
  request: { input: 'hi' },
});

verifies(
  'cancel:waiter',
  'a result is found however late one asks, by whichever client, and as often as one likes',
  async () => {
    await fleet.client.seed(fleet.seed('late'));
    for (let round = 0; round < 20; round++) {
      await using fresh = await connect();
      expect((await fresh.activate(activation('late', `fresh.${round}`))).class).toBe('ok');
    }
    await using other = await connect();
    const begun = performance.now();
    const results = await Promise.all(
      Array.from({ length: 20 }, async (_, round) => await other.wait('late', `fresh.${round}`)),
    );
    expect(results.map(({ class: resultClass }) => resultClass)).toEqual(Array<string>(20).fill('ok'));
    expect(performance.now() - begun).toBeLessThan(2_000);
    await fleet.client.close({ session_id: 'late' });
  },
);

verifies(
  ['cancel:waiter', 'result:class'],
  '200 waits at once that race the ends of their commands all return',
  async () => {
    await fleet.client.seed(fleet.seed('many'));
    const ids = Array.from({ length: 200 }, (_, index) => `a${index}`);
    await using patient = await FleetClient.connect({
      redisUrl: inject('redisUrl'),
      fleetId: fleet.id,
      parkedLimit: 1000,
    });
    const results = await Promise.all(ids.map(async (id) => await patient.activate(activation('many', id))));
    expect(results.filter((result) => result.class !== 'ok')).toEqual([]);
    await fleet.client.close({ session_id: 'many' });
  },
);

verifies('cancel:waiter', 'a waiter that goes away cancels nothing, and asking again joins or replays', async () => {
  const held = hold(say('done'));
  fleet.model.script('waited', held.script);
  await fleet.client.seed(fleet.seed('waited', 'waited'));
  const gone = new AbortController();
  const first = fleet.client.activate(activation('waited', 'a'), { signal: gone.signal });
  await expect.poll(() => held.isHolding).toBe(true);
  gone.abort(new Error('left'));
  await expect(first).rejects.toThrow('left');
  const joined = fleet.client.activate(activation('waited', 'a'));
  held.release();
  expect((await joined).class).toBe('ok');
  await using other = await connect();
  expect(await other.activate(activation('waited', 'a'))).toEqual(await joined);
  expect(fleet.model.callsOf('waited')).toHaveLength(1);
  const changed = { ...activation('waited', 'a'), request: { input: 'other' } };
  await expect(other.activate(changed)).rejects.toMatchObject({ code: 'refused/session_conflict' });
  await fleet.client.close({ session_id: 'waited' });
});

verifies('job:once', 'the identical activation twenty times at once runs once', async () => {
  await fleet.client.seed(fleet.seed('twenty', 'echo'));
  const before = fleet.model.callsOf('echo').length;
  const results = await Promise.all(
    Array.from({ length: 20 }, async () => await fleet.client.activate(activation('twenty', 'a'))),
  );
  expect(new Set(results.map(({ fence }) => fence)).size).toBe(1);
  expect(fleet.model.callsOf('echo')).toHaveLength(before + 1);
  await fleet.client.close({ session_id: 'twenty' });
});

verifies(
  'job:ordered',
  'more waiting commands than a session may have are refused for now, and the others run',
  async () => {
    const held = hold(say('done'));
    fleet.model.script('full', held.script);
    await using small = await FleetClient.connect({ redisUrl: inject('redisUrl'), fleetId: fleet.id, parkedLimit: 2 });
    await small.seed(fleet.seed('full', 'full'));
    const ids = ['a', 'b', 'c'];
    await small.submit({ activations: ids.map((id) => activation('full', id)) });
    const refused = { code: 'refused/retry_later', retryable: true, retryAfterMs: 1_000 };
    await expect(small.submit({ activations: [activation('full', 'd')] })).rejects.toMatchObject(refused);
    held.release();
    for (const id of ids) expect((await small.wait('full', id)).class).toBe('ok');
    expect((await small.activate(activation('full', 'd'))).class).toBe('ok');
    await small.close({ session_id: 'full' });
  },
);
