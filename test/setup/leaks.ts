import { readdir, readFile } from 'node:fs/promises';
import { Keys } from '@hermes-fleet/shared';
import { Redis } from 'ioredis';
import { expect, inject } from 'vitest';
import type { TestFleet } from './fleet.ts';

const SETTLED_MS = 12_000;
/** What a fleet keeps for ever: a handful of keys, however many sessions there were. `marker` wakes idle workers. */
const KEPT = /^(due|engines|streams|results:.*|(any|new-.*|engine-.*):(meta|id|events|marker|stalled-check|stalled))$/;

/** Processes whose environment says that they were started in a sandbox below `root`, as `pid command`. */
export async function processesIn(root: string): Promise<string[]> {
  const found: string[] = [];
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/.test(pid)) continue;
    try {
      if (!(await readFile(`/proc/${pid}/environ`)).includes(`TMPDIR=${root}`)) continue;
      const command = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).replaceAll('\0', ' ').split('\n')[0];
      found.push(`${pid} ${command ?? ''}`);
    } catch {
      // Gone meanwhile, or another user's.
    }
  }
  return found;
}

/** Every key of a fleet that neither expires nor is one of the few that stay. */
async function lastingKeys(redis: Redis, keys: Keys): Promise<string[]> {
  const names = await redis.keys(`${keys.prefix.replaceAll(/[[\]?*\\]/g, String.raw`\$&`)}:*`);
  const lasting: string[] = [];
  for (const name of names)
    if (!KEPT.test(name.slice(keys.prefix.length + 1)) && (await redis.pttl(name)) === -1) lasting.push(name);
  return lasting;
}

/** Fails unless, within a few seconds, no trace of any session is left but results and receipts, which expire. */
export async function expectNothingLeft(fleet: TestFleet): Promise<void> {
  const redis = new Redis(inject('redisUrl'));
  const keys = new Keys(fleet.id);
  try {
    await expect
      .poll(
        async () => ({
          keys: await lastingKeys(redis, keys),
          due: await redis.zrange(keys.due, '0', '-1'),
          sandboxes: await readdir(fleet.root),
          processes: await processesIn(fleet.root),
        }),
        { timeout: SETTLED_MS, interval: 100 },
      )
      .toEqual({ keys: [], due: [], sandboxes: [], processes: [] });
  } finally {
    redis.disconnect();
  }
}
