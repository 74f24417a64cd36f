import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, expect, inject, test, vi } from 'vitest';
import { SessionUnderTest } from '../protocol/session-under-test.ts';

const LONG_MS = 3_600_000;
const AN_HOUR_AGO = Date.now() - LONG_MS;
const YOUNG_MS = 2 * LONG_MS;
const IDLE_MS = 1500;
const WAIT = { timeout: 20_000, interval: 50 };
const OLD_MS = LONG_MS / 2;

let redis: Redis;
let session: SessionUnderTest;
let stream: string;
beforeAll(() => {
  redis = new Redis(inject('redisUrl'));
});
afterAll(() => redis.disconnect());
beforeEach(async () => {
  session = new SessionUnderTest(redis);
  stream = session.keys.results('c');
  for (const at of [0, 1, 2]) {
    const entry = ['s', 'S', 'c', `a${at}`, 'k', 'activate', 'r', '{}', 'b', at === 0 ? 'blob-key' : ''];
    await redis.xadd(stream, `${AN_HOUR_AGO + at}-0`, ...entry);
  }
});

const trim = async (resultsTtlMs: number, groupTtlMs: number, limit = 100) =>
  await session.scripts.trim('c', limit, resultsTtlMs, groupTtlMs);

async function read(group: string, count: number, isAcknowledged = true): Promise<void> {
  const reply = (await redis.xreadgroup('GROUP', group, 'reader', 'COUNT', count, 'STREAMS', stream, '>')) as [
    string,
    [string, string[]][],
  ][];
  const ids = (reply[0]?.[1] ?? []).map(([id]) => id);
  if (isAcknowledged) await redis.xack(stream, group, ...ids);
}

test('without a group, entries older than the results ttl go, and their blobs are named', async () => {
  expect(await trim(YOUNG_MS, YOUNG_MS)).toEqual({ dropped: 0, groups: [], blobs: [] });
  expect(await trim(OLD_MS, OLD_MS, 2)).toEqual({ dropped: 2, groups: [], blobs: ['blob-key'] });
  expect(await trim(OLD_MS, OLD_MS)).toEqual({ dropped: 1, groups: [], blobs: [] });
  expect(await redis.exists(stream)).toBe(0);
});

test('with a group, what it has not acknowledged stays, however old', async () => {
  await redis.xgroup('CREATE', stream, 'one', '0');
  expect(await trim(OLD_MS, YOUNG_MS)).toMatchObject({ dropped: 0 });
  await read('one', 2);
  expect(await trim(OLD_MS, YOUNG_MS)).toEqual({ dropped: 1, groups: [], blobs: ['blob-key'] });
  await read('one', 1, false);
  expect(await trim(OLD_MS, YOUNG_MS)).toMatchObject({ dropped: 1 });
  expect(await redis.xlen(stream)).toBe(1);
});

test('of two groups the slower one decides', async () => {
  await redis.xgroup('CREATE', stream, 'fast', '0');
  await redis.xgroup('CREATE', stream, 'slow', '0');
  await read('fast', 3);
  expect(await trim(OLD_MS, YOUNG_MS)).toMatchObject({ dropped: 0 });
  await read('slow', 3);
  expect(await trim(OLD_MS, YOUNG_MS)).toMatchObject({ dropped: 2 });
});

test('a group that never read is destroyed when what it has not read is old', async () => {
  await redis.xgroup('CREATE', stream, 'dead', '0');
  expect(await trim(OLD_MS, OLD_MS)).toEqual({ dropped: 3, groups: ['dead'], blobs: ['blob-key'] });
});

test('a group whose consumers are idle is destroyed, one that is read is kept', async () => {
  await redis.xgroup('CREATE', stream, 'dead', '0');
  await redis.xgroup('CREATE', stream, 'alive', '0');
  await read('dead', 1);
  await read('alive', 3);
  const trimmed = await vi.waitUntil(async () => {
    await redis.xreadgroup('GROUP', 'alive', 'reader', 'STREAMS', stream, '0');
    const answer = await trim(YOUNG_MS, IDLE_MS);
    return answer.groups.length > 0 && answer;
  }, WAIT);
  expect(trimmed).toMatchObject({ dropped: 2, groups: ['dead'] });
});

const A_MONTH_MS = 30 * 86_400_000;

test('a stream that is gone is forgotten when no seed named it for the results ttl and a month', async () => {
  await redis.del(stream);
  await redis.zadd(session.keys.streams, AN_HOUR_AGO - A_MONTH_MS, 'c');
  await trim(YOUNG_MS, YOUNG_MS);
  expect(await redis.zscore(session.keys.streams, 'c')).not.toBeNull();
  await trim(OLD_MS, OLD_MS);
  expect(await redis.zscore(session.keys.streams, 'c')).toBeNull();
});
