import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, inject, test, vi } from 'vitest';
import { activation, CLOSE_IDLE, ending, SEED, SessionUnderTest, STATES } from '../protocol/session-under-test.ts';

let redis: Redis;
let session: SessionUnderTest;
beforeAll(() => {
  redis = new Redis(inject('redisUrl'));
});
afterAll(() => redis.disconnect());
beforeEach(() => {
  session = new SessionUnderTest(redis);
});

const TOOL = { phase: 'intent', kind: 'tool', act: '1', data: '' } as const;
const MODEL = { ...TOOL, kind: 'model' } as const;
const LONG_AGO = '1';
const GRACE_MS = 80;
const WAIT = { timeout: 20_000, interval: 20 };

describe('begin', () => {
  beforeEach(async () => {
    await STATES.ready(session);
    await session.submit([activation('a1'), activation('a2')]);
  });
  const beginAgain = async () => await session.scripts.begin(session.at, 'a1', 'other', 3);

  test('of a command whose owner was just heard does nothing', async () => {
    await session.begin('a1');
    expect(await beginAgain()).toEqual({ status: 'alive' });
  });

  test('of the same call again answers the same', async () => {
    const view = await session.begin('a1');
    expect(await session.begin('a1')).toEqual(view);
  });

  test('marks a silent owner, and takes over only when the mark stood for the whole grace', async () => {
    session = new SessionUnderTest(redis, GRACE_MS);
    await STATES.ready(session);
    await session.submit([activation('a1')]);
    const first = await session.begin('a1');
    const marked = await vi.waitUntil(async () => {
      const answer = await beginAgain();
      return answer.status === 'suspect' && answer;
    }, WAIT);
    expect(marked.waitMs).toBeGreaterThan(0);
    const second = await vi.waitUntil(async () => {
      const answer = await beginAgain();
      return answer.status === 'begun' && answer.view;
    }, WAIT);
    expect(second).toMatchObject({ verdict: 'run', begins: 2 });
    expect(Number.parseInt(second.fence, 10)).toBeGreaterThan(Number.parseInt(first.fence, 10));
    expect(await session.scripts.append(session.at, 'a1', '2', first.fence, MODEL, 1000)).toEqual({ status: 'fenced' });
    expect(await session.scripts.renew(session.at, 'a1', first.fence, undefined)).toEqual({ status: 'fenced' });
    expect(await session.scripts.finish(session.at, ending('a1', first.fence))).toEqual({ status: 'fenced' });
  });

  test('the mark goes when the owner is heard', async () => {
    const { fence } = await session.begin('a1');
    await session.setField('hb', LONG_AGO);
    expect(await beginAgain()).toMatchObject({ status: 'suspect' });
    expect(await session.scripts.renew(session.at, 'a1', fence, undefined)).toEqual({ status: 'ok' });
    expect(await session.field('su')).toBeNull();
    expect(await beginAgain()).toEqual({ status: 'alive' });
  });

  test('of an activation whose tool acts had begun says lost, after model calls alone it runs again', async () => {
    const silent = async (): Promise<void> => {
      await session.setField('hb', LONG_AGO);
      await session.setField('su', LONG_AGO);
    };
    const { fence } = await session.begin('a1');
    expect(await session.scripts.append(session.at, 'a1', '2', fence, MODEL, 1000)).toEqual({ status: 'ok' });
    await silent();
    const again = await session.begin('a1', 'second');
    expect(again.verdict).toBe('run');
    expect(await session.scripts.append(session.at, 'a1', '2', again.fence, TOOL, 1000)).toEqual({ status: 'ok' });
    expect(await session.field('ac')).toBe('1');
    await silent();
    expect(await session.begin('a1', 'third')).toMatchObject({ verdict: 'lost', code: 'worker_lost' });
  });

  test('out of turn, after the end, or without a record it does nothing', async () => {
    const { scripts, at } = session;
    expect(await scripts.begin(at, 'a2', 'n', 3)).toEqual({ status: 'not_yet' });
    await session.run('a1');
    expect(await scripts.begin(at, 'a1', 'n', 3)).toMatchObject({ status: 'done', job: { commandId: 'a2' } });
    expect(await scripts.begin(at, 'a9', 'n', 3)).toEqual({ status: 'gone' });
  });

  test('past the deadline never runs', async () => {
    await session.setField('xp', LONG_AGO);
    expect(await session.begin('a1')).toMatchObject({ verdict: 'cancelled', code: 'expired' });
  });
});

describe('append', () => {
  test('a cancelled activation may not begin an act, but may say how one ended', async () => {
    const { scripts, at } = session;
    await STATES.ready(session);
    await session.submit([activation('a1')]);
    const { fence } = await session.begin('a1');
    await scripts.append(at, 'a1', '2', fence, TOOL, 1000);
    await scripts.cancel(at, 'a1', 'by_caller');
    expect(await scripts.append(at, 'a1', '2', fence, TOOL, 1000)).toEqual({ status: 'cancelled', code: 'by_caller' });
    const outcome = { ...TOOL, phase: 'outcome' } as const;
    expect(await scripts.append(at, 'a1', '2', fence, outcome, 1000)).toEqual({ status: 'ok' });
    expect(await redis.xlen(session.keys.journal(at.key, 2))).toBe(2);
  });

  test('a journal lives until the deadline of its session and the given time', async () => {
    await STATES.ready(session);
    await session.submit([activation('a1')]);
    const { fence, deadline } = await session.begin('a1');
    await session.scripts.append(session.at, 'a1', '2', fence, MODEL, 5000);
    expect(await redis.pexpiretime(session.keys.journal(session.at.key, 2))).toBe(deadline + 5000);
  });
});

describe('finish', () => {
  test('a repeat after a lost answer gets the same answer, and the same next command', async () => {
    await STATES.ready(session);
    await session.submit([activation('a1'), activation('a2')]);
    const { fence } = await session.begin('a1');
    const once = await session.scripts.finish(session.at, ending('a1', fence, { nextNonce: 'next' }));
    expect(once).toMatchObject({ status: 'published', next: { taken: { job: { commandId: 'a2' } } } });
    const again = await session.scripts.finish(session.at, ending('a1', fence, { nextNonce: 'next' }));
    if (once.status !== 'published') throw new Error('not published');
    expect(again).toEqual({ status: 'dup', resultClass: 'ok', fence, next: once.next });
    expect(await session.results()).toEqual(['seed ok', 'a1 ok']);
  });

  test('of a seed that was cancelled waits until it has released its sandbox', async () => {
    await session.submit([SEED]);
    const { fence } = await session.begin('seed');
    await session.scripts.cancel(session.at, 'seed', 'by_caller');
    const pending = await session.scripts.finish(session.at, ending('seed', fence));
    expect(pending).toEqual({ status: 'cancel_pending', code: 'by_caller' });
    await session.scripts.finish(session.at, ending('seed', fence, { resultClass: 'cancelled', released: true }));
    expect(await session.results()).toEqual(['seed cancelled by_caller']);
  });

  test('of a seed whose lease was reaped is refused until it gives the command back', async () => {
    const { scripts, at } = session;
    const member = `${at.key}.nseed`;
    await scripts.renewEngine('h1', 60_000);
    await session.submit([SEED]);
    expect(await scripts.admit('h1', member, 1, 1)).toBe('ok');
    const { fence } = await session.begin('seed');
    await expect.poll(async () => await scripts.reap('h1', member, 0, 'claim')).toBe('claimed');
    const lease = { engine: 'h1', member, ttlMs: 1000 };
    expect(await scripts.renew(at, 'seed', fence, lease)).toEqual({ status: 'lost' });
    expect(await scripts.finish(at, ending('seed', fence, { engine: 'h1' }))).toEqual({ status: 'lease_lost' });
    const back = ending('seed', fence, { engine: 'h1', resultClass: 'again', released: true });
    expect(await scripts.finish(at, back)).toMatchObject({ status: 'again', job: { queue: 'new-stub' } });
    expect(await scripts.admit('h1', `${at.key}.second`, 1, 1)).toBe('ok');
  });

  test('of a blob that is gone asks for it again', async () => {
    await session.submit([SEED]);
    const { fence } = await session.begin('seed');
    const blob = session.keys.blob(session.at.key, 1, fence);
    const withBlob = ending('seed', fence, { blob });
    expect(await session.scripts.finish(session.at, withBlob)).toEqual({ status: 'blob_missing' });
    await redis.set(blob, 'large', 'PX', 1000);
    expect(await session.scripts.finish(session.at, withBlob)).toMatchObject({ status: 'published' });
    expect(await redis.pttl(blob)).toBeGreaterThan(1000);
  });

  test('an activation that is given back after tool acts is lost, a fresh one is handed out again', async () => {
    await STATES.ready(session);
    await session.submit([activation('a1'), activation('a2')]);
    const { fence } = await session.begin('a1');
    const again = await session.scripts.finish(session.at, ending('a1', fence, { resultClass: 'again' }));
    expect(again).toMatchObject({ status: 'again', job: { commandId: 'a1' } });
    const second = await session.begin('a1', 'second');
    await session.scripts.append(session.at, 'a1', '2', second.fence, TOOL, 1000);
    await session.scripts.finish(session.at, ending('a1', second.fence, { resultClass: 'again' }));
    expect(await session.results()).toEqual(['seed ok', 'a1 infra worker_lost']);
  });

  test('a close leaves nothing but its receipt', async () => {
    await session.seedOn('h1');
    await session.submit([CLOSE_IDLE]);
    const view = await session.run('close', { engine: 'h1' });
    expect(view).toMatchObject({ engine: 'h1', lease: `${session.at.key}.nseed`, descriptor: '{"box":1}' });
    const { keys, at } = session;
    expect(await redis.exists(keys.leases('h1'), keys.bound('h1'), keys.due, keys.payloads(at.key))).toBe(0);
    expect(await redis.pttl(keys.record(at.key))).toBeGreaterThan(0);
  });
});

describe('tick', () => {
  test('an engine that no worker renews ends its activations, and the close goes on anywhere', async () => {
    const { scripts, at, keys } = session;
    await session.seedOn('h1');
    await session.submit([activation('a1'), activation('a2'), CLOSE_IDLE]);
    await session.begin('a1');
    await redis.zadd(keys.engines, 1, 'h1');
    expect(await scripts.tick(at, 'h1', undefined)).toMatchObject({ status: 'ok' });
    expect(await scripts.tick(at, 'h1', 0)).toMatchObject({
      status: 'lost',
      job: { queue: 'any', commandId: 'close' },
    });
    expect(await session.results()).toEqual(['seed ok', 'a2 infra engine_lost', 'a1 infra engine_lost']);
    expect(await scripts.tick(at, 'h1', 0)).toMatchObject({ status: 'moved' });
    expect(await session.begin('close')).toMatchObject({ verdict: 'run', engine: '', lease: '' });
    expect(await scripts.reap('h1', `${at.key}.nseed`, 0, 'claim')).toBe('claimed');
  });

  test("a silent owner's command is handed out again, a heard one's is not", async () => {
    await STATES.ready(session);
    await session.submit([activation('a1')]);
    await session.begin('a1');
    expect(await session.scripts.tick(session.at, '', undefined)).toEqual({ status: 'ok', job: undefined });
    await session.setField('hb', LONG_AGO);
    expect(await session.scripts.tick(session.at, '', undefined)).toMatchObject({ job: { commandId: 'a1' } });
  });

  test('a session past its deadline is closed', async () => {
    await session.submit([SEED, activation('a1')]);
    await session.setField('xp', LONG_AGO);
    expect(await session.scripts.tick(session.at, '', undefined)).toMatchObject({ status: 'closed' });
    expect(await session.results()).toEqual([
      'a1 cancelled expired',
      'seed cancelled expired',
      'close ok nothing_to_close',
    ]);
  });

  test('due hands out a session once, until the claim ends', async () => {
    await session.submit([SEED]);
    await redis.zadd(session.keys.due, 1, session.at.key);
    expect((await session.scripts.due(10, 60_000, 0)).sessions).toEqual([session.at.key]);
    expect((await session.scripts.due(10, 60_000, 0)).sessions).toEqual([]);
  });
});
