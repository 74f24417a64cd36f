import { spawnSync } from 'node:child_process';
import { Redis } from 'ioredis';

/** Containers of the fleet, as the engine shows them: environment, command lines, labels, mounts. */
export function inspectAll(fleetId: string): string {
  const docker = (...args: string[]): string => spawnSync('docker', args, { encoding: 'utf8' }).stdout;
  const ids = docker('ps', '-aq', '--filter', `label=hermes-fleet.fleet=${fleetId}`).trim().split('\n');
  // One that is removed meanwhile makes it fail, with the others all the same on stdout.
  return docker('inspect', ...ids);
}

/** Every key of the fleet with its value. Packed bodies stay packed: they are what clients read as results. */
export async function wholeRedis(redisUrl: string, fleetId: string): Promise<string> {
  const redis = new Redis(redisUrl);
  try {
    const keys = await redis.keys(`{${fleetId}:*`);
    const dumped = await Promise.all(
      keys.map(async (key) => {
        const kind = await redis.type(key);
        if (kind === 'hash') return [key, await redis.hgetall(key)];
        if (kind === 'stream') return [key, await redis.xrange(key, '-', '+')];
        if (kind === 'list') return [key, await redis.lrange(key, 0, -1)];
        if (kind === 'set') return [key, await redis.smembers(key)];
        if (kind === 'zset') return [key, await redis.zrange(key, '0', '-1')];
        return [key, await redis.get(key)];
      }),
    );
    return JSON.stringify(dumped);
  } finally {
    redis.disconnect();
  }
}
