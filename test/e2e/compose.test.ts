import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { freePort, startRedis } from '../setup/redis-server.ts';

const root = path.resolve(import.meta.dirname, '../..');
const compose = path.join(root, '.venv/bin/docker-compose');

const Service = z.looseObject({
  command: z.array(z.string()),
  environment: z.record(z.string(), z.string()).default({}),
  healthcheck: z.object({ test: z.array(z.string()) }),
});
const Resolved = z.object({ services: z.record(z.string(), Service) });

/** The file as Docker Compose itself reads it, with the variables that are given. */
function resolve(variables: Readonly<Record<string, string>> = {}, ...args: readonly string[]) {
  if (!existsSync(compose)) throw new Error('Docker Compose is missing: npm run setup -- --test');
  const all = ['-f', path.join(root, 'docker-compose.yml'), ...args, 'config', '--format', 'json'];
  const text = execFileSync(compose, all, {
    env: { PATH: '/usr/bin:/bin', HOME: '/nowhere', ...variables },
  }).toString();
  return Resolved.parse(JSON.parse(text)).services;
}

function service(name: string, variables: Readonly<Record<string, string>> = {}) {
  const found = resolve(variables)[name];
  if (found === undefined) throw new Error(`there is no service ${name}`);
  return found;
}

test('the file says a Redis and workers, and nothing else', () => {
  expect(Object.keys(resolve()).toSorted()).toEqual(['redis', 'worker']);
});

test('Redis keeps what it acknowledges and evicts nothing, and only this machine can reach it', () => {
  const redis = service('redis', { FLEET_REDIS_PORT: '7000' });
  expect(redis.command.join(' ')).toMatch(/--appendonly yes .*--maxmemory-policy noeviction/);
  expect(redis['ports']).toMatchObject([{ host_ip: '127.0.0.1', published: '7000', target: 6379 }]);
  expect(redis['volumes']).toMatchObject([{ type: 'volume', target: '/data' }]);
});

test('the worker can be scaled, shares the engine and is given time to drain', () => {
  const worker = service('worker', { FLEET_DRAIN_MS: '50000' });
  expect(worker['container_name']).toBeUndefined();
  expect(worker['ports']).toBeUndefined();
  expect(worker['volumes']).toMatchObject([{ source: '/var/run/docker.sock', target: '/var/run/docker.sock' }]);
  expect(worker['depends_on']).toMatchObject({ redis: { condition: 'service_healthy' } });
  expect(worker['stop_grace_period']).toBe('1m0s');
  expect(worker.environment).toMatchObject({ FLEET_REDIS_URL: 'redis://redis:6379', FLEET_DRAIN_MS: '50000' });
});

test('both services say when they are well', () => {
  for (const { healthcheck } of Object.values(resolve())) expect(healthcheck.test[0]).toBe('CMD');
});

test('the commands of the file start a Redis and two workers that become ready beside it', async () => {
  const [, ...redisArgs] = service('redis').command;
  const redis = await startRedis({ args: redisArgs });
  onTestFinished(redis.stop);
  const sandboxes = await mkdtemp(path.join(tmpdir(), 'fleet-compose-'));
  onTestFinished(() => rm(sandboxes, { recursive: true, force: true }));
  const { command, environment } = service('worker');
  expect(command).toEqual(['node', 'worker/dist/main.js', 'start']);
  const workers = await Promise.all(
    [1, 2].map(async () => {
      const port = await freePort();
      // From source, and without an engine: whether Docker answers is for the tests of test/docker.
      const child = startFromSource({
        ...environment,
        FLEET_REDIS_URL: redis.url,
        FLEET_PROVIDERS: 'local',
        FLEET_LOCAL_ROOT: sandboxes,
        FLEET_ID: path.basename(sandboxes),
        FLEET_HEALTH_PORT: String(port),
      });
      return { child, port };
    }),
  );
  await Promise.all(
    workers.map(async ({ child, port }) => {
      const [program, ...check] = service('worker')
        .healthcheck.test.slice(1)
        .map((word) => word.replace(/127\.0\.0\.1:\d+/, `127.0.0.1:${port}`));
      expect(program).toBe('node');
      await expect.poll(() => exitOf(check), { timeout: 60_000, interval: 500 }).toBe(0);
      child.kill('SIGTERM');
      await expect.poll(() => child.exitCode, { timeout: 20_000 }).toBe(0);
    }),
  );
});

function startFromSource(env: Readonly<Record<string, string>>): ChildProcess {
  const main = ['--import', 'tsx', '--conditions=@hermes-fleet/source', 'worker/src/main.ts', 'start'];
  const child = spawn(process.execPath, main, {
    cwd: root,
    env: { PATH: '/usr/bin:/bin', ...env },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  onTestFinished(() => void child.kill('SIGKILL'));
  return child;
}

const exitOf = (args: readonly string[]): Promise<number | null> =>
  new Promise((resolved) => {
    spawn(process.execPath, args, { stdio: 'ignore' }).once('exit', resolved);
  });
