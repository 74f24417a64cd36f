import { setTimeout as sleep } from 'node:timers/promises';
import {
  addressOf,
  ENGINE_GRACE_MS,
  ENGINE_TTL_MS,
  type HarnessFleet,
  type HarnessOptions,
  LEASE_MS,
} from './harness-fleet.ts';
import type { Run } from './harness-run.ts';

const DUE_MS = 400;
const CLAIM_MS = 2000;
const REAP_MS = 600;
const REAP_GRACE_MS = 300;
const FREE_MS = 1500;

/** Everything that a worker does beside its jobs: engine lease, due sessions, reaper. */
export function maintain(
  fleet: HarnessFleet,
  options: HarnessOptions,
  live: ReadonlyMap<string, Run>,
  count: (what: string) => void,
): void {
  const { keys, redis, scripts, world } = fleet;
  const { engine } = options;
  // After an outage, or after we were frozen, all leases look lapsed: nobody is judged before this.
  let judgeFrom = 0;
  const holdJudgement = (): void => {
    judgeFrom = Date.now() + Math.max(ENGINE_TTL_MS, LEASE_MS) + ENGINE_GRACE_MS;
  };
  const mayJudge = (): boolean => Date.now() > judgeFrom;
  redis.on('ready', () => {
    holdJudgement();
    for (const run of live.values()) void run.beat();
  });

  const loop = async (ms: number, act: () => Promise<void>): Promise<void> => {
    for (;;) {
      try {
        await act();
      } catch (error) {
        count(`loop failed: ${error instanceof Error ? error.message.slice(0, 40) : ''}`);
      }
      await sleep(ms * (0.7 + Math.random() * 0.6));
    }
  };

  const tick = async (key: string): Promise<void> => {
    const bound = (await redis.hget(keys.record(key), 'en')) ?? '';
    const answer = await scripts.tick(addressOf(key), bound, mayJudge() ? ENGINE_GRACE_MS : undefined);
    count(`tick ${answer.status}`);
    await fleet.add(answer.job, key);
  };
  let lastLook = Date.now();
  const look = async (): Promise<void> => {
    if (Date.now() - lastLook > CLAIM_MS) holdJudgement();
    lastLook = Date.now();
    const { sessions, lapsedEngines } = await scripts.due(50, CLAIM_MS, ENGINE_GRACE_MS);
    for (const key of sessions) await tick(key);
    if (!mayJudge()) return;
    for (const lapsed of lapsedEngines) for (const key of await redis.smembers(keys.bound(lapsed))) await tick(key);
  };

  const firstSeen = new Map<string, number>();
  const reapOne = async (member: string): Promise<void> => {
    const answer = await scripts.reap(engine, member, REAP_GRACE_MS, 'claim');
    if (answer === 'claimed') {
      count('reaped');
      await world.remove(member, 'reaper');
      await scripts.reap(engine, member, 0, 'done');
    }
    if (answer !== 'free') {
      firstSeen.delete(member);
      return;
    }
    const seen = firstSeen.get(member);
    if (seen === undefined) firstSeen.set(member, Date.now());
    else if (Date.now() - seen > FREE_MS) {
      await world.remove(member, 'reaper');
      firstSeen.delete(member);
    }
  };
  const reap = async (): Promise<void> => {
    const lapsed = await redis.zrangebyscore(keys.leases(engine), 0, Date.now() - REAP_GRACE_MS);
    for (const member of new Set([...(await world.sandboxes(engine)), ...lapsed])) {
      if (!mayJudge()) return;
      await reapOne(member);
    }
  };

  void loop(ENGINE_TTL_MS / 3.5, async () => await scripts.renewEngine(engine, ENGINE_TTL_MS));
  void loop(DUE_MS, look);
  void loop(REAP_MS, reap);
}
