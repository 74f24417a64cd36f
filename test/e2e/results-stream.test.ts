import { FleetClient, type ResultEntry, type ResultsOptions } from '@hermes-fleet/producer';
import { Keys } from '@hermes-fleet/shared';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, inject } from 'vitest';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { expectNothingLeft } from '../setup/leaks.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: TestFleet;
let redis: Redis;
beforeAll(async () => {
  fleet = await startFleet({ redisUrl: inject('redisUrl'), workers: 1 });
  redis = new Redis(inject('redisUrl'));
});
afterEach(async () => await expectNothingLeft(fleet));
afterAll(async () => {
  redis.disconnect();
  await fleet[Symbol.asyncDispose]();
});

const keys = (): Keys => new Keys(fleet.id);

/** Runs whole sessions that answer on `replyTo`; three results each. */
async function runSessions(replyTo: string, ids: readonly string[]): Promise<void> {
  await Promise.all(
    ids.map(async (id) => {
      await fleet.client.submit({
        seed: fleet.seed(id, 'echo', { reply_to: replyTo }),
        activations: [{ session_id: id, activation_id: 'a', request: { input: 'hi' } }],
        close: { session_id: id, when: 'idle' },
      });
      await fleet.client.wait(id, 'close');
    }),
  );
}

/** Reads `count` entries as a reader of its own. */
async function read(options: ResultsOptions, count: number, withAck = true): Promise<ResultEntry[]> {
  await using client = await FleetClient.connect({ redisUrl: inject('redisUrl'), fleetId: fleet.id });
  const entries: ResultEntry[] = [];
  for await (const entry of client.results(options)) {
    entries.push(entry);
    if (withAck) await entry.ack();
    if (entries.length === count) break;
  }
  return entries;
}

const names = (entries: readonly ResultEntry[]): string[] =>
  entries.map(({ result }) => `${result.session_id} ${result.command_id}`);
const length = async (replyTo: string): Promise<number> => await redis.xlen(keys().results(replyTo));

verifies(
  'result:stream',
  'each group gets every result once, and nothing is dropped before all have acknowledged it',
  async () => {
    const [one, two] = [
      { group: 'one', replyTo: 'groups', consumer: 'r' },
      { group: 'two', replyTo: 'groups', consumer: 'r' },
    ];
    // Declared before the first submit, by reading.
    const stop = new AbortController();
    for (const options of [one, two]) {
      const reader = fleet.client.results({ ...options, signal: stop.signal });
      const first = reader.next();
      await expect.poll(async () => await redis.exists(keys().results('groups'))).toBe(1);
      stop.signal.addEventListener('abort', () => void first.catch(() => undefined));
      void first;
    }
    await expect
      .poll(async () => ((await redis.xinfo('GROUPS', keys().results('groups'))) as unknown[]).length)
      .toBe(2);
    stop.abort();
    await runSessions('groups', ['g/1', 'g/2']);
    const first = await read(one, 6);
    expect(new Set(names(first)).size).toBe(6);
    // Longer than a round of trimming.
    const until = performance.now() + 2_500;
    await expect.poll(() => performance.now() > until, { timeout: 5_000 }).toBe(true);
    expect(await length('groups')).toBe(6);
    expect(names(await read(two, 6)).toSorted()).toEqual(names(first).toSorted());
    // The last one stays until another comes.
    await expect.poll(async () => await length('groups'), { timeout: 5_000 }).toBe(1);
    await runSessions('groups', ['g/3']);
    expect(names(await read(one, 3))).toEqual(['g/3 seed', 'g/3 a', 'g/3 close']);
    expect(await redis.zrange(keys().streams, '0', '-1')).toContain('groups');
  },
);

verifies(
  'result:stream',
  'a reader that is restarted gets again what it had not acknowledged, then what is new',
  async () => {
    const options = { group: 'g', replyTo: 'restart', consumer: 'r' };
    await runSessions('restart', ['r/1', 'r/2']);
    const before = await read(options, 4, false);
    await before[0]?.ack().catch(() => undefined);
    await redis.xack(keys().results('restart'), 'g', before[0]?.id ?? '');
    await runSessions('restart', ['r/3']);
    const after = await read(options, 8);
    expect(new Set(names([...before.slice(0, 1), ...after])).size).toBe(9);
    expect(names(after).slice(0, 3)).toEqual(names(before).slice(1));
  },
);

verifies(
  'result:stream',
  'what a reader took and did not acknowledge goes to the next one, as soon as the reader ends',
  async () => {
    await runSessions('quits', ['quits-1', 'quits-2']);
    const first = await read({ group: 'g', replyTo: 'quits', consumer: 'quits' }, 2, false);
    const next = await read({ group: 'g', replyTo: 'quits', consumer: 'next' }, 6);
    expect(names(next)).toHaveLength(6);
    expect(names(next)).toEqual(expect.arrayContaining(names(first)));
  },
);

verifies(
  'result:stream',
  'what a reader took and never acknowledged is given to another one of its group',
  async () => {
    await runSessions('gone', ['x/1']);
    const taken = await read({ group: 'g', replyTo: 'gone', consumer: 'dead' }, 3, false);
    const given = await read({ group: 'g', replyTo: 'gone', consumer: 'alive', reclaimMs: 100 }, 3);
    expect(names(given)).toEqual(names(taken));
  },
);

verifies('result:stream', 'a client that comes late, to a group or to a result, finds everything', async () => {
  await runSessions('late', ['l/1']);
  const until = performance.now() + 1_500;
  await expect.poll(() => performance.now() > until, { timeout: 5_000 }).toBe(true);
  expect(names(await read({ group: 'late', replyTo: 'late' }, 3))).toEqual(['l/1 seed', 'l/1 a', 'l/1 close']);
  await using other = await FleetClient.connect({ redisUrl: inject('redisUrl'), fleetId: fleet.id });
  for (const id of ['seed', 'a', 'close']) expect((await other.wait('l/1', id)).class).toBe('ok');
});

verifies('result:stream', 'a stream with too much unread refuses new sessions for now', async () => {
  await runSessions('unread', ['u/1']);
  await using limited = await FleetClient.connect({ redisUrl: inject('redisUrl'), fleetId: fleet.id, unreadLimit: 3 });
  const refused = { code: 'refused/retry_later', retryable: true };
  await expect(limited.seed(fleet.seed('u/2', 'echo', { reply_to: 'unread' }))).rejects.toMatchObject(refused);
  await expect(limited.status('u/2')).rejects.toMatchObject({ code: 'refused/session_unknown' });
});
