import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { activation, CLOSE_NOW, ending, SEED, SessionUnderTest, STATES } from '../protocol/session-under-test.ts';
import { type RedisServer, startRedis } from '../setup/redis-server.ts';

let server: RedisServer;
let redis: Redis;
let session: SessionUnderTest;
let fence: string;
beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.url);
});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});
beforeEach(async () => {
  await redis.config('SET', 'maxmemory', '0');
  session = new SessionUnderTest(redis);
  await STATES.ready(session);
  await session.submit(['a1', 'a2', 'a3'].map((id) => activation(id)));
  ({ fence } = await session.begin('a1'));
  await redis.config('SET', 'maxmemory', '1');
});

async function snapshot(): Promise<unknown[]> {
  const { keys, at } = session;
  return [
    await redis.hgetall(keys.record(at.key)),
    await redis.lrange(`${keys.record(at.key)}:m`, 0, -1),
    await redis.hgetall(keys.payloads(at.key)),
    await redis.hgetall(keys.storedResults(at.key)),
    await redis.xlen(keys.results(at.replyTo)),
    await redis.xlen(keys.journal(at.key, 2)),
    await redis.zscore(keys.due, at.key),
  ];
}

const refusing: Record<string, () => Promise<unknown>> = {
  submit: async () => await session.submit([activation('a9')]),
  'submit of another session': async () => await session.submit([SEED], {}, { key: 'other', replyTo: 'c' }),
  append: async () => {
    const entry = { phase: 'intent', kind: 'tool', act: '1', data: '' } as const;
    return await session.scripts.append(session.at, 'a1', '2', fence, entry, 1000);
  },
  renew: async () => await session.scripts.renew(session.at, 'a1', fence, undefined),
  tick: async () => await session.scripts.tick(session.at, '', undefined),
  'finish again': async () => await session.scripts.finish(session.at, ending('a1', fence, { resultClass: 'again' })),
};

test.for(Object.entries(refusing))('with Redis full, %s is refused and has changed nothing', async ([, call]) => {
  const before = await snapshot();
  await expect(call()).rejects.toThrow(/^OOM/);
  expect(await snapshot()).toEqual(before);
});

test('with Redis full, cancel, finish and close now free memory first, so they complete', async () => {
  expect(await session.scripts.cancel(session.at, 'a2', 'by_caller')).toMatchObject({ how: 'answered' });
  const finished = await session.scripts.finish(session.at, ending('a1', fence, { nextNonce: 'next' }));
  expect(finished).toMatchObject({ status: 'published', next: { taken: { job: { commandId: 'a3' } } } });
  expect(await session.answersTo(activation('a3'))).toEqual(['dup b']);
  expect(await session.results()).toEqual(['seed ok', 'a2 cancelled by_caller', 'a1 ok']);
});

test('with Redis full, close now ends what waits', async () => {
  expect(await session.answersTo(CLOSE_NOW)).toEqual(['accepted parked']);
  expect(await session.results()).toEqual(['seed ok', 'a2 cancelled by_close', 'a3 cancelled by_close']);
});
