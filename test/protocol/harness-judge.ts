import { Queue } from 'bullmq';
import type { Redis } from 'ioredis';
import { ENGINES, type HarnessFleet, SEED_QUEUE } from './harness-fleet.ts';
import type { Sessions } from './harness-sessions.ts';
import type { Mode } from './harness-faults.ts';

/** What is still open or lying around. All zero at rest. */
export async function leftovers(
  fleet: HarnessFleet,
  redis: Redis,
  sessions: Sessions,
): Promise<Record<string, number>> {
  const { keys, world } = fleet;
  const left = { waiting: sessions.waiting().length, sandboxes: 0, leases: 0, bound: 0, due: 0, jobs: 0 };
  for (const engine of ENGINES) {
    left.sandboxes += (await world.sandboxes(engine)).length;
    left.leases += await redis.zcard(keys.leases(engine));
    left.bound += await redis.scard(keys.bound(engine));
  }
  left.due = await redis.zcard(keys.due);
  for (const name of [SEED_QUEUE, 'any', ...ENGINES.map((engine) => `engine-${engine}`)]) {
    const queue = new Queue(name, { connection: redis, prefix: keys.prefix, skipVersionCheck: true });
    const counts = await queue.getJobCounts('waiting', 'active', 'delayed', 'failed', 'completed');
    for (const count of Object.values(counts)) left.jobs += count;
    await queue.close();
  }
  return left;
}

function wrongResults(sessions: Sessions, mode: Mode): string[] {
  const wrong: string[] = [];
  for (const [id, { isAccepted, isCancelled, results }] of sessions.owed) {
    if (isAccepted && results.length === 0) wrong.push(`no result: ${id}`);
    // A close that failed may be repeated; each has a result of its own.
    if (results.length > 1 && !id.endsWith('|close')) wrong.push(`two results: ${id}`);
    for (const { class: resultClass, code } of results) {
      if (isCancelled && isAccepted && resultClass !== 'cancelled')
        wrong.push(`cancel was accepted: ${id} ${resultClass}`);
      if (mode === 'outage' && /_lost|stale/.test(code)) wrong.push(`lost by an outage: ${id} ${code}`);
    }
  }
  return wrong;
}

/** By the sandboxes' own log: no act twice or under two fences, and never an earlier command after a later one. */
async function wrongActs(fleet: HarnessFleet): Promise<string[]> {
  const wrong: string[] = [];
  const latest = new Map<string, number>();
  const acted = new Map<string, { readonly epoch: string; readonly acts: Set<string> }>();
  for (const { event, session, number, epoch, act } of await fleet.world.log()) {
    if (event !== 'start' && event !== 'tool') continue;
    const last = latest.get(session) ?? 0;
    if (number < last) wrong.push(`out of order: ${session} ${number} after ${last}`);
    latest.set(session, Math.max(last, number));
    if (event !== 'tool') continue;
    const id = `${session}.${number}`;
    const before = acted.get(id) ?? { epoch, acts: new Set() };
    if (before.epoch !== epoch || before.acts.has(act)) wrong.push(`act doubled: ${id} ${act}`);
    before.acts.add(act);
    acted.set(id, before);
  }
  return wrong;
}

/** Everything that must not have happened in a fault run. */
export async function judge(
  fleet: HarnessFleet,
  sessions: Sessions,
  mode: Mode,
  limit: number,
  left: Readonly<Record<string, number>>,
): Promise<string[]> {
  const wrong = [...wrongResults(sessions, mode), ...(await wrongActs(fleet))];
  for (const name of sessions.borrowed)
    if (!(await fleet.world.exists(name))) wrong.push(`borrowed sandbox removed: ${name}`);
  for (const engine of ENGINES)
    if ((await fleet.world.peak(engine)) > limit) wrong.push(`over the limit of sandboxes: ${engine}`);
  for (const [what, count] of Object.entries(left)) if (count > 0) wrong.push(`left behind: ${count} ${what}`);
  return wrong;
}
