import { hostname } from 'node:os';
import {
  type CommandKind,
  type CommandResult,
  reasonOf,
  FleetError,
  isTemporary,
  issuesOf,
  type Keys,
  ReplyTo,
} from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';
import { setTimeout as sleep } from 'node:timers/promises';
import { readResult } from './bodies.ts';

export interface ResultsOptions {
  /** Consumer group; each group gets every result once. Made if it is not there, from the beginning of the stream. */
  readonly group: string;
  /** Which reader of the group this is, the same after a restart. Default: host and process. */
  readonly consumer?: string;
  /** Default `default`. */
  readonly replyTo?: string;
  /** Entries that a reader of the group took and did not acknowledge for so long are given to this one. Default 60 s. */
  readonly reclaimMs?: number;
  readonly signal?: AbortSignal;
}

/** One entry of a results stream. */
export interface ResultEntry {
  /** Id in the stream. */
  readonly id: string;
  readonly result: CommandResult;
  /** Tells the fleet that this group has it; without it the entry is kept, and given out again. */
  ack(): Promise<void>;
}

const COUNT = 100;
const BLOCK_MS = 5_000;
const RETRY_MS = 500;
/** Longer than any patience with a reader. */
const LONG_AGO_MS = 2_000_000_000;

type Entry = readonly [id: string, fields: string[]];

/** Reads a results stream as a member of a group: first what this reader had not acknowledged, then what is new. */
export async function* readResults(
  blocking: Redis,
  redis: Redis,
  keys: Keys,
  options: ResultsOptions,
): AsyncGenerator<ResultEntry> {
  const { group, signal } = options;
  const replyTo = ReplyTo.safeParse(options.replyTo ?? 'default');
  if (!replyTo.success) throw new FleetError('refused/invalid', `replyTo: ${issuesOf(replyTo.error)}`);
  if (group === '') throw new FleetError('refused/invalid', 'group: must not be empty');
  const consumer = options.consumer ?? `${hostname()}-${process.pid}`;
  const stream = keys.results(replyTo.data);
  const reclaimMs = options.reclaimMs ?? 60_000;
  await ensureGroup(redis, stream, group);
  let from = '0';
  let reclaimAt = 0;
  const held = new Set<string>();
  try {
    while (!isAborted(signal)) {
      let entries: readonly Entry[];
      try {
        entries = await nextEntries(blocking, {
          stream,
          group,
          consumer,
          from,
          blockMs: Math.min(BLOCK_MS, Math.max(1, reclaimMs)),
        });
        from = from === '>' ? from : (entries.at(-1)?.[0] ?? '>');
        if (entries.length === 0 || performance.now() >= reclaimAt) {
          reclaimAt = performance.now() + reclaimMs;
          entries = [...entries, ...(await reclaim(redis, { stream, group, consumer, idleMs: reclaimMs }))];
        }
      } catch (error) {
        if (isAborted(signal)) return;
        await afterTrouble(error, redis, stream, group);
        continue;
      }
      for (const [id] of entries) held.add(id);
      for (const [id, fields] of entries) {
        const entry = await toEntry(redis, id, fields, async () => {
          await redis.xack(stream, group, id);
          held.delete(id);
        });
        if (entry !== undefined) yield entry;
        if (isAborted(signal)) return;
      }
    }
  } finally {
    await handBack(redis, { stream, group, consumer, ids: [...held] });
  }
}

/** What was taken and not acknowledged looks idle for long: the group's next reader gets it, and need not wait for it. */
async function handBack(
  redis: Redis,
  { stream, group, consumer, ids }: { stream: string; group: string; consumer: string; ids: readonly string[] },
): Promise<void> {
  if (ids.length === 0) return;
  // The reader's own time to live does the same, later.
  await redis.xclaim(stream, group, consumer, 0, ...ids, 'IDLE', LONG_AGO_MS, 'JUSTID').catch(() => undefined);
}

const isAborted = (signal: AbortSignal | undefined): boolean => signal?.aborted === true;

async function nextEntries(
  redis: Redis,
  at: {
    readonly stream: string;
    readonly group: string;
    readonly consumer: string;
    readonly from: string;
    readonly blockMs: number;
  },
): Promise<readonly Entry[]> {
  const reply = await redis.xreadgroup(
    'GROUP',
    at.group,
    at.consumer,
    'COUNT',
    COUNT,
    'BLOCK',
    at.blockMs,
    'STREAMS',
    at.stream,
    at.from,
  );
  const entries = reply?.[0]?.[1] ?? [];
  // A pending entry that was deleted has no fields; it is of no use to anyone, and is let go.
  const dead = entries.filter(([, fields]) => fields === null).map(([id]) => id);
  if (dead.length > 0) await redis.xack(at.stream, at.group, ...dead);
  return entries.flatMap(([id, fields]) => (fields === null ? [] : [[id, fields] as const]));
}

/** Entries of readers that are gone. */
async function reclaim(
  redis: Redis,
  at: { readonly stream: string; readonly group: string; readonly consumer: string; readonly idleMs: number },
): Promise<readonly Entry[]> {
  const reply = (await redis.xautoclaim(at.stream, at.group, at.consumer, at.idleMs, '0-0', 'COUNT', COUNT)) as [
    string,
    [string, string[] | null][],
  ];
  return reply[1].flatMap(([id, fields]) => (fields === null ? [] : [[id, fields] as const]));
}

/** Declares a group, so that nothing is trimmed before it has read it. Harmless when it is there. */
export async function ensureGroup(redis: Redis, stream: string, group: string): Promise<void> {
  try {
    await redis.xgroup('CREATE', stream, group, '0', 'MKSTREAM');
  } catch (error) {
    if (!(error instanceof Error) || !error.message.startsWith('BUSYGROUP'))
      throw new FleetError('refused/redis', `consumer group ${group} cannot be made (${reasonOf(error)})`, {
        cause: error,
      });
  }
}

/** The stream, and with it the group, may have been trimmed away whole; anything else that passes is waited out. */
async function afterTrouble(error: unknown, redis: Redis, stream: string, group: string): Promise<void> {
  if (error instanceof Error && error.message.startsWith('NOGROUP')) await ensureGroup(redis, stream, group);
  else if (
    isTemporary(error) ||
    (error instanceof Error && /connection|closed|ECONN|timed out|retries/i.test(error.message))
  )
    await sleep(RETRY_MS);
  else throw error;
}

async function toEntry(
  redis: Redis,
  id: string,
  fields: readonly string[],
  ack: () => Promise<void>,
): Promise<ResultEntry | undefined> {
  const at = (name: string): string => fields[fields.indexOf(name) + 1] ?? '';
  const text = at('r');
  if (text === '') return undefined;
  return { id, result: await readResult(redis, at('s'), at('c'), at('k') as CommandKind, text), ack };
}
