import { hostname } from 'node:os';
import {
  checkRedis,
  connectRedis,
  Dispatcher,
  Keys,
  type MailboxTiming,
  reasonOf,
  Scripts,
} from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';
import { Backoff } from './capture/backoff.ts';
import type { Command, Outcome } from './command.ts';
import type { Config } from './config.ts';
import { type Engine, openEngine } from './engine.ts';
import { FleetWorker } from './fleet-worker.ts';
import { serveHealth } from './health.ts';
import { type Log, RateLimitedWarning } from './log.ts';
import { Mailbox } from './mailbox.ts';
import { Maintenance } from './maintenance.ts';
import { activate } from './processors/activate.ts';
import { close } from './processors/close.ts';
import { seed } from './processors/seed.ts';
import { Reaper } from './reaper.ts';
import { Runs } from './runs.ts';
import type { SandboxProvider } from './sandbox/provider.ts';

/** How long a fresh process waits for Redis to answer at all. */
const REDIS_START_MS = 8_000;

/** A worker at work. */
export interface RunningWorker {
  readonly engines: readonly Engine[];
  /** Takes nothing new, lets running commands end within the drain time, gives the others back, and lets go of everything. */
  stop(): Promise<void>;
  /** Gives running commands back at once. */
  stopNow(): void;
}

/** What `stop` needs to take down, in its order. */
interface Parts {
  readonly config: Config;
  readonly log: Log;
  readonly runs: Runs;
  readonly worker: FleetWorker;
  readonly maintenance: Maintenance;
  readonly reapers: readonly Reaper[];
  readonly engines: readonly Engine[];
  readonly connections: readonly Redis[];
}

export function timingOf(config: Config): MailboxTiming {
  return {
    recheckMs: config.FLEET_RECHECK_MS,
    receiptMs: config.FLEET_RECEIPT_MS,
    lapseMs: config.FLEET_LOCK_MS,
    graceMs: config.FLEET_TAKEOVER_GRACE_MS,
  };
}

/**
 * Composes a worker from its settings and providers, and starts it.
 *
 * @throws FleetError `refused/config` or `refused/redis` when Redis cannot be used, `infra/engine_lost` when an engine does not answer
 */
export async function startWorker(
  config: Config,
  providers: readonly SandboxProvider[],
  log: Log,
): Promise<RunningWorker> {
  await checkRedis(config.FLEET_REDIS_URL, { deadlineMs: REDIS_START_MS, allowEviction: config.FLEET_ALLOW_EVICTION });
  const warnings = new RateLimitedWarning(log);
  const connect = (name: string): Redis =>
    connectRedis(config.FLEET_REDIS_URL, (error) =>
      warnings.warn('redis connection trouble', { connection: name, reason: reasonOf(error) }),
    );
  const redis = connect('commands');
  const queueConnection = connect('queues');
  const subscriber = connect('messages');
  const keys = new Keys(config.FLEET_ID);
  const scripts = new Scripts(redis, keys, timingOf(config), { patient: true });
  const dispatcher = new Dispatcher(keys, queueConnection);
  const engines = await Promise.all(
    providers.map(async (provider) => await openEngine(provider, scripts, config, log)),
  );
  const runs = new Runs(scripts, config.FLEET_RENEW_MS);
  const mailbox = new Mailbox(scripts, dispatcher, runs, config, executor(scripts, config, engines), log);
  const worker = new FleetWorker({ connection: queueConnection, keys, config, engines, mailbox, log });
  const maintenance = new Maintenance({
    scripts,
    dispatcher,
    engines,
    config,
    log,
    onRound: async () => await worker.followSlots(),
  });
  const reapers = engines.map(
    (engine) =>
      new Reaper({ scripts, engine, config, log, held: () => runs.leases, mayJudge: () => maintenance.mayJudge }),
  );

  // Before anything can be begun: a cancel that is sent afterwards must find a listener, or the first heartbeat.
  subscriber.on('message', (channel, message) => {
    if (channel === keys.cancelChannel) runs.onCancelMessage(message);
    else if (engines.some(({ id }) => id === message))
      worker
        .followSlots()
        .catch((error: unknown) => warnings.warn('counting slots failed', { reason: reasonOf(error) }));
  });
  await subscriber.subscribe(keys.cancelChannel, keys.slotsChannel);
  redis.on('ready', () => {
    maintenance.holdJudgement();
    runs.beatAll();
  });
  subscriber.on('ready', () => runs.beatAll());

  // An engine must be known before a seed asks it for a lease.
  for (const engine of engines) await scripts.renewEngine(engine.id, config.FLEET_LEASE_MS);
  await worker.start();
  maintenance.start();
  for (const reaper of reapers) reaper.start();
  const health =
    config.FLEET_HEALTH_PORT === undefined
      ? undefined
      : serveHealth(config.FLEET_HEALTH_PORT, healthChecks(redis, worker, maintenance, engines));
  log.info(
    {
      fleet: config.FLEET_ID,
      engines: engines.map(({ id, provider }) => `${provider.kind}:${id.slice(0, 12)}`),
      slots: config.FLEET_SLOTS,
      host: hostname(),
    },
    'worker started',
  );

  let stopping: Promise<void> | undefined;
  const parts: Parts = {
    config,
    log,
    runs,
    worker,
    maintenance,
    reapers,
    engines,
    connections: [subscriber, queueConnection, redis],
  };
  return {
    engines,
    stop: async () => {
      health?.close();
      await (stopping ??= stop(parts, dispatcher));
    },
    stopNow: () => runs.abortAll(),
  };
}

function executor(
  scripts: Scripts,
  config: Config,
  engines: readonly Engine[],
): (command: Command) => Promise<Outcome> {
  const backoff = new Backoff({
    firstMs: config.FLEET_MODEL_BACKOFF_MS,
    longestMs: config.FLEET_MODEL_BACKOFF_LONGEST_MS,
    longestAskedMs: config.FLEET_MODEL_RETRY_AFTER_MS,
  });
  const engineOf = (id: string): Engine | undefined => engines.find((engine) => engine.id === id);
  return async (command) => {
    if (command.kind === 'seed') return await seed(command, config);
    if (command.kind === 'activate') return await activate(command, { scripts, config, backoff, engineOf });
    return await close(command, { scripts, config, engineOf });
  };
}

function healthChecks(
  redis: Redis,
  worker: FleetWorker,
  maintenance: Maintenance,
  engines: readonly Engine[],
): Parameters<typeof serveHealth>[1] {
  const redisCheck = {
    name: 'redis',
    problem: () => (redis.status === 'ready' ? undefined : `the connection is ${redis.status}`),
  };
  const fetching = {
    name: 'fetch',
    problem: () => (worker.isFetching ? undefined : 'a queue is not being fetched from'),
  };
  const rounds = { name: 'maintenance', problem: () => maintenance.problem };
  const runners = engines.map(({ provider, runners: pool }) => ({
    name: `runner:${provider.kind}`,
    problem: () => pool.problem,
  }));
  return { live: [fetching], ready: [redisCheck, rounds, ...runners] };
}

async function stop(parts: Parts, dispatcher: Dispatcher): Promise<void> {
  const { config, log, runs, worker, maintenance, reapers, engines, connections } = parts;
  log.info({ running: runs.size, drain_ms: config.FLEET_DRAIN_MS }, 'worker draining');
  runs.drain();
  const limit = config.FLEET_DRAIN_MS === 0 ? undefined : setTimeout(() => runs.abortAll(), config.FLEET_DRAIN_MS);
  await worker.drain();
  // Heartbeats and leases go on until the last command has ended.
  await worker.close();
  clearTimeout(limit);
  maintenance.stop();
  for (const reaper of reapers) reaper.stop();
  for (const engine of engines) {
    await engine.runners.close();
    await engine.provider.close();
  }
  await dispatcher.close();
  for (const connection of connections) connection.disconnect();
  log.info('worker stopped');
}
