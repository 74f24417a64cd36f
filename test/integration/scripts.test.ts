import { sessionKey, type SubmitCommand } from '@hermes-fleet/shared';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, inject, test } from 'vitest';
import {
  activation,
  CLOSE_IDLE,
  CLOSE_NOW,
  ending,
  OTHER_SEED,
  SEED,
  SessionUnderTest,
  STATES,
} from '../protocol/session-under-test.ts';

let redis: Redis;
let session: SessionUnderTest;
beforeAll(() => {
  redis = new Redis(inject('redisUrl'));
});
afterAll(() => redis.disconnect());
beforeEach(() => {
  session = new SessionUnderTest(redis);
});

describe('submit', () => {
  type State = keyof typeof STATES;
  const cells: readonly [string, SubmitCommand, Readonly<Record<State, string>>][] = [
    [
      'the same seed',
      SEED,
      {
        new: 'dup q',
        ready: 'dup o',
        failed: 'dup f',
        lost: 'dup o',
        closing: 'late o',
        closed: 'late o',
        unknown: 'accepted dispatched',
      },
    ],
    [
      'another seed',
      OTHER_SEED,
      {
        new: 'refused conflict',
        ready: 'refused conflict',
        failed: 'refused conflict',
        lost: 'refused conflict',
        closing: 'refused closed',
        closed: 'refused closed',
        unknown: 'accepted dispatched',
      },
    ],
    [
      'a new activation',
      activation('a1'),
      {
        new: 'accepted parked',
        ready: 'accepted dispatched',
        failed: 'accepted answered',
        lost: 'accepted answered',
        closing: 'refused closed',
        closed: 'refused closed',
        unknown: 'refused unknown_session',
      },
    ],
    [
      'close when idle',
      CLOSE_IDLE,
      {
        new: 'accepted parked',
        ready: 'accepted dispatched',
        failed: 'accepted dispatched',
        lost: 'accepted dispatched',
        closing: 'dup q',
        closed: 'dup o',
        unknown: 'accepted answered',
      },
    ],
    [
      'close now',
      CLOSE_NOW,
      {
        new: 'accepted answered',
        ready: 'accepted dispatched',
        failed: 'accepted dispatched',
        lost: 'accepted dispatched',
        closing: 'dup q',
        closed: 'dup o',
        unknown: 'accepted answered',
      },
    ],
  ];
  for (const [what, command, row] of cells)
    for (const state of Object.keys(row) as State[])
      test(`${what} in state ${state}: ${row[state]}`, async () => {
        await STATES[state](session);
        expect(await session.answersTo(command)).toEqual([row[state]]);
      });

  test('an activation that is known is joined with the same body and refused with another', async () => {
    await session.submit([SEED, activation('a1')]);
    expect(await session.answersTo(activation('a1'), activation('a1', 'other'))).toEqual(['dup p', 'refused conflict']);
    await session.run('seed');
    await session.run('a1');
    expect(await session.answersTo(activation('a1'))).toEqual(['dup o']);
  });

  test('a plan is accepted in one call and a repeat of it hands out a lost dispatch again', async () => {
    const plan = [SEED, activation('a1'), CLOSE_IDLE];
    const first = await session.submit(plan);
    expect(first).toEqual({ job: 'seed', answers: ['accepted dispatched', 'accepted parked', 'accepted parked'] });
    expect(await session.submit(plan)).toEqual({ job: 'seed', answers: ['late q', 'dup p', 'dup p'] });
  });

  test('activations of a failed seed get its class and code, those of a lost session say so', async () => {
    await STATES.failed(session);
    await session.submit([activation('a1')]);
    expect(await session.results()).toEqual(['seed failed no_answer', 'a1 failed no_answer']);
    session = new SessionUnderTest(redis);
    await STATES.lost(session);
    await session.submit([activation('a1')]);
    expect((await session.results()).at(-1)).toBe('a1 infra sandbox_lost');
  });

  test('close now before the seed began ends everything without a worker', async () => {
    await session.submit([SEED, activation('a1')]);
    expect(await session.submit([CLOSE_NOW])).toEqual({ job: undefined, answers: ['accepted answered'] });
    expect(await session.results()).toEqual([
      'a1 cancelled by_close',
      'seed cancelled by_close',
      'close ok nothing_to_close',
    ]);
    expect(await session.field('st')).toBe('z');
  });

  test('close now promotes a close that waits and signals the running command', async () => {
    await STATES.ready(session);
    await session.submit([activation('a1'), activation('a2'), CLOSE_IDLE]);
    const { fence } = await session.begin('a1');
    expect(await session.answersTo(CLOSE_NOW)).toEqual(['dup parked']);
    const intent = { phase: 'intent', kind: 'model', act: '1', data: '' } as const;
    expect(await session.scripts.append(session.at, 'a1', '2', fence, intent, 1000)).toEqual({
      status: 'cancelled',
      code: 'by_close',
    });
    const answer = await session.scripts.finish(session.at, ending('a1', fence));
    expect(answer).toMatchObject({
      status: 'published',
      resultClass: 'cancelled',
      next: { job: { commandId: 'close' } },
    });
  });

  test('another identity is refused for every kind, and an empty one is not checked', async () => {
    await STATES.ready(session);
    const other = { identity: 'wrong' };
    const all = [activation('a1'), CLOSE_IDLE, SEED];
    expect((await session.submit(all, other)).answers).toEqual(all.map(() => 'refused identity'));
    expect((await session.submit([activation('a1')], { identity: '' })).answers).toEqual(['accepted dispatched']);
  });

  test('a refused seed takes what follows it along', async () => {
    await STATES.closed(session);
    expect(await session.answersTo(OTHER_SEED, activation('a1'))).toEqual(['refused closed', 'refused skipped']);
  });

  test('limits: parked commands, unread results, a cancelled sweep', async () => {
    await session.submit([SEED, activation('a1')]);
    expect((await session.submit([activation('a2')], { parkedLimit: 1 })).answers).toEqual(['refused parked_full']);
    const other = { ...session.at, key: sessionKey('T') };
    await redis.xadd(session.keys.results('c'), '*', 's', 'x');
    expect((await session.submit([SEED], { unreadLimit: 1 }, other)).answers).toEqual(['refused backpressure']);
    await redis.set(session.keys.sweep('sweep'), '1');
    expect((await session.submit([SEED], { sweepId: 'sweep' }, other)).answers).toEqual(['refused sweep_cancelled']);
  });

  test('a caller that takes the results stream for another one is told which it is', async () => {
    await STATES.ready(session);
    const elsewhere = { ...session.at, replyTo: 'other' };
    expect((await session.submit([activation('a1')], {}, elsewhere)).answers).toEqual(['moved c']);
    expect(await session.scripts.cancel(elsewhere, 'a1', 'by_caller')).toEqual({ moved: 'c' });
    expect(await session.scripts.tick(elsewhere, '', undefined)).toEqual({ status: 'moved', job: undefined });
    expect(await redis.exists(session.keys.results('other'))).toBe(0);
  });

  test('a seed goes to the queue of its provider and the stream is remembered for trim', async () => {
    const answer = await session.submit([SEED], { seedQueue: 'new-engine-h1' });
    expect(answer.job).toBe('seed');
    expect(await session.field('nq')).toBe('new-engine-h1');
    expect(await redis.zscore(session.keys.streams, 'c')).not.toBeNull();
  });
});

describe('cancel', () => {
  test('of a command that was not submitted yet is kept for it', async () => {
    expect(await session.scripts.cancel(session.at, 'a1', 'by_caller')).toMatchObject({
      status: 'accepted',
      how: 'tombstone',
    });
    expect(await session.answersTo(SEED, activation('a1'))).toEqual(['accepted dispatched', 'accepted answered']);
    expect(await session.results()).toEqual(['a1 cancelled by_caller']);
  });

  test('of a seed that was not submitted yet fails the session', async () => {
    await session.scripts.cancel(session.at, 'seed', 'by_caller');
    expect(await session.answersTo(SEED, activation('a1'))).toEqual(['accepted answered', 'accepted answered']);
    expect(await session.results()).toEqual(['seed cancelled by_caller', 'a1 cancelled by_caller']);
  });

  test('of a parked command answers it and leaves the others', async () => {
    await session.submit([SEED, activation('a1'), activation('a2')]);
    const answer = await session.scripts.cancel(session.at, 'a1', 'by_caller');
    expect(answer).toEqual({ status: 'accepted', how: 'answered', job: undefined });
    expect(await redis.lrange(`${session.keys.record(session.at.key)}:m`, 0, -1)).toEqual(['a2']);
  });

  test('of a dispatched command hands out the next one', async () => {
    await STATES.ready(session);
    await session.submit([activation('a1'), activation('a2')]);
    const answer = await session.scripts.cancel(session.at, 'a1', 'by_caller');
    expect(answer).toMatchObject({ how: 'answered', job: { commandId: 'a2' } });
    expect(await session.scripts.cancel(session.at, 'a1', 'by_caller')).toEqual({
      status: 'late',
      resultClass: 'cancelled',
    });
  });

  test('of a running command is told to its owner, and wins over a result that comes later', async () => {
    await STATES.ready(session);
    await session.submit([activation('a1')]);
    const { fence } = await session.begin('a1');
    expect(await session.scripts.cancel(session.at, 'a1', 'by_caller')).toMatchObject({ how: 'signalled' });
    expect(await session.scripts.renew(session.at, 'a1', fence, undefined)).toEqual({
      status: 'cancelled',
      code: 'by_caller',
    });
    expect(await session.scripts.finish(session.at, ending('a1', fence))).toMatchObject({ resultClass: 'cancelled' });
  });

  test('of a close is refused', async () => {
    await STATES.closing(session);
    expect(await session.scripts.cancel(session.at, 'close', 'by_caller')).toEqual({ status: 'refused' });
  });
});
