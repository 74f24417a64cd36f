import { setTimeout as sleep } from 'node:timers/promises';
import { Redis, type RedisOptions } from 'ioredis';
import { FleetError, reasonOf } from './failure.ts';

/** Longest pause before a reconnect; below the takeover grace, so that a living owner is heard in time. */
const LONGEST_RECONNECT_MS = 1000;

/** `host:port` of a Redis URL, without its password, for messages. */
export function redisAddress(url: string): string {
  const { hostname, port } = new URL(url);
  return `${hostname}:${port === '' ? '6379' : port}`;
}

/**
 * A connection that outlives outages: commands wait while Redis is away, and are sent when it is back.
 *
 * @param onError hears each connection error; ioredis would otherwise end the process
 */
export function connectRedis(
  url: string,
  onError: (error: Error) => void,
  options: Omit<RedisOptions, 'replyMapping'> = {},
): Redis {
  const merged: Omit<RedisOptions, 'replyMapping'> = {
    maxRetriesPerRequest: null,
    retryStrategy: (tries: number) => Math.min(50 * tries, LONGEST_RECONNECT_MS),
    reconnectOnError: (error: Error) => error.message.startsWith('READONLY'),
    ...options,
  };
  const redis = new Redis(url, merged);
  redis.on('error', onError);
  coalesceWrites(redis);
  return redis;
}

/**
 * One write to the socket per turn of the event loop, however many commands the turn sends: the system call is the dear
 * part of a command, at both ends. Unlike ioredis' pipelines, each command stays one of its own, which is what lets it be
 * sent again after a lost connection.
 */
function coalesceWrites(redis: Redis): void {
  const send = redis.sendCommand.bind(redis);
  redis.sendCommand = (command, target) => {
    // Undefined before the first connection, which ioredis' types do not say.
    const stream: typeof redis.stream | undefined = redis.stream;
    if (stream?.writableCorked === 0) {
      stream.cork();
      process.nextTick(() => stream.uncork());
    }
    return send(command, target);
  };
}

const MINIMUM = [6, 2] as const;

function isOldEnough(version: string): boolean {
  const [major = 0, minor = 0] = version.split('.').map(Number);
  return major > MINIMUM[0] || (major === MINIMUM[0] && minor >= MINIMUM[1]);
}

export interface RedisFacts {
  readonly version: string;
  /** Undefined where the server does not tell. */
  readonly policy: string | undefined;
}

async function readFacts(redis: Redis): Promise<RedisFacts> {
  const info = await redis.info('server');
  const memory = await redis.info('memory');
  const version = /valkey_version:(\S+)/.exec(info)?.[1] ?? /redis_version:(\S+)/.exec(info)?.[1];
  if (version === undefined)
    throw new FleetError('refused/config', 'the server at the Redis URL does not say its version');
  return { version, policy: /maxmemory_policy:(\S+)/.exec(memory)?.[1] };
}

/**
 * Makes sure that a Redis can be relied upon, before the first real use: it answers, lets us in, is new enough, and
 * never evicts keys.
 *
 * @throws FleetError `refused/config` for what waiting cannot mend (password, version, eviction policy), `refused/redis` when it does not answer within `deadlineMs`
 */
export async function checkRedis(
  url: string,
  options: { readonly deadlineMs: number; readonly allowEviction?: boolean },
): Promise<RedisFacts> {
  // The text may hold a password, so that no message repeats it.
  if (!/^rediss?:\/\//.test(url) || !URL.canParse(url))
    throw new FleetError('refused/config', 'the Redis URL must be a redis:// or rediss:// URL');
  const where = redisAddress(url);
  let last: Error | undefined;
  const probe = new Redis(url, {
    lazyConnect: true,
    maxRetriesPerRequest: 0,
    retryStrategy: () => null,
    connectTimeout: options.deadlineMs,
    commandTimeout: options.deadlineMs,
  });
  probe.on('error', (error) => (last = error));
  try {
    await probe.connect();
    // ioredis goes on with database 0 when the one of the URL cannot be had.
    const database = Number(/^\/(\d+)$/.exec(new URL(url).pathname)?.[1] ?? 0);
    await probe.select(database).catch((error: unknown) => {
      if (error instanceof Error && /DB index|invalid DB|SELECT is not allowed/i.test(error.message))
        throw new FleetError('refused/config', `Redis at ${where} has no database ${database} (${error.message})`);
      throw error;
    });
    const facts = await readFacts(probe);
    if (!isOldEnough(facts.version))
      throw new FleetError(
        'refused/config',
        `Redis at ${where} is ${facts.version}; ${MINIMUM.join('.')} or newer is needed`,
      );
    if (facts.policy !== undefined && facts.policy !== 'noeviction' && options.allowEviction !== true) {
      throw new FleetError(
        'refused/config',
        `Redis at ${where} may evict keys (maxmemory-policy ${facts.policy}); set it to noeviction, or set FLEET_ALLOW_EVICTION=true to run on a cache that may lose sessions`,
      );
    }
    return facts;
  } catch (error) {
    if (error instanceof FleetError) throw error;
    const reason = reasonOf(last ?? error);
    if (
      /NOAUTH|WRONGPASS|invalid password|without any password configured|NOPERM/i.test(reason) ||
      /NOAUTH|WRONGPASS|invalid password|NOPERM/i.test(reasonOf(error))
    ) {
      throw new FleetError('refused/config', `Redis at ${where} refused our user or password`, { cause: error });
    }
    throw new FleetError('refused/redis', `Redis at ${where} does not answer (${reason})`, { cause: error });
  } finally {
    probe.disconnect();
  }
}

/** Replies of a server that will do what was asked later: out of memory, loading, read-only replica, fail-over under way. */
const TEMPORARY =
  /^(OOM|LOADING|READONLY|MASTERDOWN|BUSY|TRYAGAIN|CLUSTERDOWN|NOREPLICAS|MISCONF|NOAUTH|NOPERM|WRONGPASS|-?UNBLOCKED)/;

export function isTemporary(error: unknown): boolean {
  return error instanceof Error && TEMPORARY.test(error.message.replace(/^ERR (?=\w+ )/, ''));
}

const PATIENCE_MS = 500;

/**
 * Repeats a call until the server does what it can only refuse for now. For workers, which pause while Redis is away and
 * lose nothing; producers get the error at once.
 */
export async function patiently<T>(call: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!isTemporary(error)) throw error;
      await sleep(PATIENCE_MS);
    }
  }
}
