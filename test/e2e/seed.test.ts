import { readdir } from 'node:fs/promises';
import { sessionKey } from '@hermes-fleet/shared';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { heldSandbox } from '../setup/go.ts';
import { expectNothingLeft } from '../setup/leaks.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: TestFleet;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 2 });
});
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => await fleet[Symbol.asyncDispose]());

const sandboxesOf = async (id: string): Promise<string[]> =>
  (await readdir(fleet.root)).filter((name) => name.startsWith(sessionKey(id)));

verifies(
  ['seed:idempotent', 'seed:own'],
  'ten seeds of one id and body at once are one session in one sandbox',
  async () => {
    const body = fleet.seed('joined');
    const seeds = await Promise.all(Array.from({ length: 10 }, async () => await fleet.client.seed(body)));
    expect(new Set(seeds.map(({ fence }) => fence)).size).toBe(1);
    expect(seeds[0]).toMatchObject({ class: 'ok', body: { sandbox: { provider: 'stub' } } });
    expect(await sandboxesOf('joined')).toHaveLength(1);
    expect(await fleet.client.close({ session_id: 'joined' })).toMatchObject({
      class: 'ok',
      body: { sandbox: 'removed' },
    });
  },
);

verifies('seed:idempotent', 'a body whose members come in another order is the same body', async () => {
  const identity = { rollout_id: 'r', labels: { one: '1', two: '2' } };
  await fleet.client.seed(fleet.seed('order', 'echo', { identity }));
  const swapped = { labels: { two: '2', one: '1' }, rollout_id: 'r' };
  const [again] = await fleet.client.submit({ seed: fleet.seed('order', 'echo', { identity: swapped }) });
  expect(again?.status).toBe('joined');
  await fleet.client.close({ session_id: 'order' });
});

verifies('seed:idempotent', 'the same id with another body is refused, and the session is none the worse', async () => {
  await fleet.client.seed(fleet.seed('conflict'));
  await expect(fleet.client.seed(fleet.seed('conflict', 'other'))).rejects.toMatchObject({
    code: 'refused/session_conflict',
  });
  const done = await fleet.client.activate({ session_id: 'conflict', activation_id: 'a', request: { input: 'hi' } });
  expect(done.class).toBe('ok');
  await fleet.client.close({ session_id: 'conflict' });
});

verifies(
  ['seed:idempotent', 'close:always'],
  'a closed session is neither seeded nor activated again, by whatever body',
  async () => {
    await fleet.client.seed(fleet.seed('over'));
    await fleet.client.close({ session_id: 'over' });
    for (const model of ['echo', 'other'])
      await expect(fleet.client.seed(fleet.seed('over', model))).rejects.toMatchObject({
        code: 'refused/session_closed',
      });
    const late = fleet.client.activate({ session_id: 'over', activation_id: 'a', request: { input: 'hi' } });
    await expect(late).rejects.toMatchObject({ code: 'refused/session_closed' });
  },
);

verifies(
  'seed:idempotent',
  'an activation before its seed is refused as unknown, and runs once it was seeded',
  async () => {
    const activate = { session_id: 'early', activation_id: 'a', request: { input: 'hi' } };
    await expect(fleet.client.activate(activate)).rejects.toMatchObject({ code: 'refused/session_unknown' });
    await expect(fleet.client.wait('early', 'a')).rejects.toMatchObject({ code: 'refused/session_unknown' });
    await expect(fleet.client.status('early')).rejects.toMatchObject({ code: 'refused/session_unknown' });
    await fleet.client.seed(fleet.seed('early'));
    expect((await fleet.client.activate(activate)).class).toBe('ok');
    await fleet.client.close({ session_id: 'early' });
  },
);

verifies('seed:no-debris', 'a seed that fails half-way leaves no sandbox and no usable session', async () => {
  const files = [{ path: '../../outside', text: 'x' }];
  const seed = fleet.seed('fails', 'echo', { sandbox: { provider: 'stub', image: 'none', files } });
  expect(await fleet.client.seed(seed)).toMatchObject({ class: 'infra', code: 'sandbox_create', retryable: true });
  expect(await sandboxesOf('fails')).toEqual([]);
  const late = await fleet.client.activate({ session_id: 'fails', activation_id: 'a', request: { input: 'hi' } });
  expect(late).toMatchObject({ class: 'infra', code: 'sandbox_create' });
  const closed = await fleet.client.close({ session_id: 'fails' });
  expect(closed).toMatchObject({
    class: 'ok',
    body: { session: { class: 'infra', code: 'sandbox_create' }, sandbox: 'none' },
  });
});

verifies('seed:no-debris', 'a seed over its time ends infra/timeout_seed and leaves nothing', async () => {
  const { sandbox } = heldSandbox();
  const seeded = await fleet.client.seed(fleet.seed('slow', 'echo', { sandbox, timeouts: { seed_s: 0.3 } }));
  expect(seeded).toMatchObject({ class: 'infra', code: 'timeout_seed' });
  expect(await sandboxesOf('slow')).toEqual([]);
  await fleet.client.close({ session_id: 'slow' });
});

verifies(
  'seed:idempotent',
  'commands that name another rollout or attempt are refused, and those that name none are not',
  async () => {
    const identity = { rollout_id: 'mine', attempt: 2 };
    const [id, request] = ['whose', { input: 'hi' }];
    await fleet.client.seed(fleet.seed(id, 'echo', { identity }));
    const foreign = [{ rollout_id: 'other', attempt: 2 }, { rollout_id: 'mine', attempt: 3 }, { rollout_id: 'mine' }];
    for (const other of foreign) {
      const refused = { code: 'refused/session_conflict' };
      await expect(fleet.client.seed(fleet.seed(id, 'echo', { identity: other }))).rejects.toMatchObject(refused);
      await expect(
        fleet.client.activate({ session_id: id, activation_id: 'a', request, identity: other }),
      ).rejects.toMatchObject(refused);
      await expect(fleet.client.close({ session_id: id, identity: other })).rejects.toMatchObject(refused);
      const plan = { seed: fleet.seed(id, 'echo', { identity }), close: { session_id: id, identity: other } };
      await expect(fleet.client.submit(plan)).rejects.toMatchObject(refused);
    }
    expect((await fleet.client.activate({ session_id: id, activation_id: 'b', request })).class).toBe('ok');
    expect((await fleet.client.activate({ session_id: id, activation_id: 'c', request, identity })).class).toBe('ok');
    expect((await fleet.client.close({ session_id: id, identity })).class).toBe('ok');
  },
);
