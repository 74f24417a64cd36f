import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { startRedis } from '../setup/redis-server.ts';
import { startTcpProxy } from '../setup/tcp-proxy.ts';
import { Crew, type Mode } from './harness-faults.ts';
import { ENGINES, HarnessFleet, REPLY_TO } from './harness-fleet.ts';
import { judge, leftovers } from './harness-judge.ts';
import { Sessions } from './harness-sessions.ts';

export interface FaultRunOptions {
  readonly sessions: number;
  /** Over how long the sessions start, and faults are made. */
  readonly seconds: number;
  readonly mode: Mode;
  /** Open sandboxes per engine. */
  readonly limit?: number;
  /** How long all may take to come to rest afterwards. */
  readonly settleMs?: number;
}

export interface FaultReport {
  readonly accepted: number;
  readonly refused: number;
  readonly skippedAdds: number;
  readonly classes: Readonly<Record<string, number>>;
  readonly faults: Readonly<Record<string, number>>;
  /** What the workers counted. */
  readonly workers: Readonly<Record<string, number>>;
  readonly seconds: number;
  readonly violations: readonly string[];
}

/** Reads the results stream in a consumer group and trims it now and then, as a client does. */
async function readResults(url: string, fleet: HarnessFleet, sessions: Sessions, signal: AbortSignal): Promise<void> {
  const redis = new Redis(url);
  const stream = fleet.keys.results(REPLY_TO);
  await redis.xgroup('CREATE', stream, 'group', '0', 'MKSTREAM');
  while (!signal.aborted) {
    const reply = (await redis.xreadgroup(
      'GROUP',
      'group',
      'reader',
      'COUNT',
      200,
      'BLOCK',
      300,
      'STREAMS',
      stream,
      '>',
    )) as [string, [string, string[]][]][] | null;
    const entries = reply?.[0]?.[1] ?? [];
    for (const [, [, session = '', , command = '', , , , result = '{}']] of entries)
      sessions.entry(session, command).results.push(JSON.parse(result) as { class: string; code: string });
    if (entries.length > 0) await redis.xack(stream, 'group', ...entries.map(([id]) => id));
    await fleet.scripts.trim(REPLY_TO, 500, 600_000, 600_000);
  }
  redis.disconnect();
}

/**
 * Random sessions on real worker processes, Redis and BullMQ, while workers are killed and frozen, connections dropped,
 * engines lost, or Redis made unreachable. All clients of the fleet are behind a proxy.
 */
export async function faultRun({ sessions: count, seconds, mode, ...options }: FaultRunOptions): Promise<FaultReport> {
  const { limit = 40, settleMs = 90_000 } = options;
  const started = performance.now();
  const server = await startRedis({ args: ['--appendonly', 'no'] });
  const outside = await startRedis({ args: ['--appendonly', 'no'] });
  const proxy = await startTcpProxy({ host: '127.0.0.1', port: server.port });
  const urls = { fleetId: 'harness', redisUrl: `redis://127.0.0.1:${proxy.port}`, worldUrl: outside.url };
  const crew = new Crew();
  const fleet = new HarnessFleet(urls);
  const own = new HarnessFleet({ ...urls, redisUrl: server.url });
  const over = new AbortController();
  const isSlow = mode === 'outage' || mode === 'kill';
  const sessions = new Sessions(fleet, {
    spreadMs: seconds * 800,
    sessionTtlMs: isSlow ? 60_000 : 9000,
    slow: isSlow ? 0.4 : 0.1,
  });
  const reading = readResults(server.url, own, sessions, over.signal);
  try {
    const members = ENGINES.flatMap((engine) => [`${engine}a`, `${engine}b`].map((name) => ({ name, engine })));
    await Promise.all(
      members.map(async ({ name, engine }) => {
        const blocks = mode === 'faults' && name === 'h1b';
        await crew.start({ ...urls, name, engine, limit, blocks });
      }),
    );
    const calm = new AbortController();
    const disturbed = crew.disturb(mode, proxy, own.redis, calm.signal);
    await Promise.all(Array.from({ length: count }, async (_, index) => await sessions.run(index)));
    calm.abort();
    await disturbed;
    const end = performance.now() + settleMs;
    let left = await leftovers(own, own.redis, sessions);
    while (Object.values(left).some((value) => value > 0) && performance.now() < end) {
      await sleep(500);
      left = await leftovers(own, own.redis, sessions);
    }
    over.abort();
    await reading;
    const classes: Record<string, number> = {};
    for (const { results } of sessions.owed.values())
      for (const { class: name, code } of results) classes[`${name} ${code}`] = (classes[`${name} ${code}`] ?? 0) + 1;
    return {
      accepted: [...sessions.owed.values()].filter(({ isAccepted }) => isAccepted).length,
      refused: sessions.refused,
      skippedAdds: sessions.skippedAdds,
      classes,
      faults: crew.faults,
      workers: crew.counts,
      seconds: Math.round((performance.now() - started) / 1000),
      violations: await judge(own, sessions, mode, limit, left),
    };
  } finally {
    over.abort();
    crew.stop();
    fleet.close();
    own.close();
    await proxy.stop();
    await server.stop();
    await outside.stop();
  }
}
