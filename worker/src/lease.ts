import type { Scripts } from '@hermes-fleet/shared';
import type { Engine } from './engine.ts';

/**
 * The claim on a sandbox slot that is written before the sandbox exists, and whose name the sandbox carries. It is never
 * re-created: once the reaper has claimed it, its answer is final.
 */
export interface Lease {
  readonly member: string;
  readonly engine: string;
  readonly ttlMs: number;
}

/** Takes a lease, or says why not. A resent call of the same member is `ok` again. */
export async function takeLease(
  scripts: Scripts,
  engine: Engine,
  member: string,
  ttlMs: number,
): Promise<Lease | 'full' | 'no_engine'> {
  const answer = await scripts.admit(engine.id, member, ttlMs, engine.slots.limit);
  return answer === 'ok' ? { member, engine: engine.id, ttlMs } : answer;
}

/** Gives a lease back whose sandbox is gone, or never was. */
export async function dropLease(scripts: Scripts, lease: Lease): Promise<void> {
  await scripts.redis.zrem(scripts.keys.leases(lease.engine), lease.member);
}
