import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Redis } from 'ioredis';
import { expect, inject, test } from 'vitest';
import { findRedisServer, startRedis } from '../setup/redis-server.ts';

const setting = async (url: string, name: string): Promise<unknown> => {
  const redis = new Redis(url);
  try {
    return await redis.config('GET', name);
  } finally {
    redis.disconnect();
  }
};

test('the server of the run evicts nothing and keeps an append-only file', async () => {
  expect(await setting(inject('redisUrl'), 'maxmemory-policy')).toEqual(['maxmemory-policy', 'noeviction']);
  expect(await setting(inject('redisUrl'), 'appendonly')).toEqual(['appendonly', 'yes']);
});

test('a killed server comes back on its port and folder with what it had acknowledged', async () => {
  const dir = await mkdtemp(path.join(tmpdir(), 'fleet-redis-test-'));
  const first = await startRedis({ dir, args: ['--appendfsync', 'always'] });
  expect(first.version).toMatch(/^(Redis|Valkey) \d+\.\d+\.\d+$/);
  const redis = new Redis(first.url);
  await redis.set('kept', 'yes');
  redis.disconnect();
  await first.kill();
  const second = await startRedis({ dir, port: first.port });
  const again = new Redis(second.url);
  expect(await again.get('kept')).toBe('yes');
  again.disconnect();
  await second.stop();
  await rm(dir, { recursive: true });
});

test('arguments of the caller win', async () => {
  const server = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
  expect(await setting(server.url, 'maxmemory-policy')).toEqual(['maxmemory-policy', 'allkeys-lru']);
  await server.stop();
});

test('a server that cannot start says why', async () => {
  await expect(startRedis({ args: ['--no-such-setting', '1'] })).rejects.toThrow(/no-such-setting/);
});

test.runIf(process.platform === 'linux')('a server does not outlive an owner that is killed', async () => {
  const dir = await mkdtemp(path.join(tmpdir(), 'fleet-redis-test-'));
  const module = path.resolve(import.meta.dirname, '../setup/redis-server.ts');
  const start = `startRedis({ dir: ${JSON.stringify(dir)} })`;
  const code = `const { startRedis } = await import(${JSON.stringify(module)}); console.log((await ${start}).process.pid)`;
  const owner = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', code], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [line] = (await once(owner.stdout, 'data')) as [Buffer];
  const pid = Number(line.toString());
  expect(process.kill(pid, 0)).toBe(true);
  owner.kill('SIGKILL');
  await expect.poll(() => isAlive(pid), { timeout: 5_000 }).toBe(false);
  await rm(dir, { recursive: true });
});

test('the embedded server or one on PATH is found here', () => {
  expect(findRedisServer()).toMatch(/(redis|valkey)-server$/);
});

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}
