import { FleetClient } from '@hermes-fleet/producer';
import { loadConfig } from '@hermes-fleet/worker/config';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { startProgram } from '../setup/processes.ts';
import { freePort, type RedisServer, startRedis } from '../setup/redis-server.ts';

const WORKER = 'worker/src/main.ts';
const SECRET = 'RPW-CCC';

let locked: RedisServer;
let evicting: RedisServer;
beforeAll(async () => {
  locked = await startRedis({ args: ['--requirepass', 'right'] });
  evicting = await startRedis({ args: ['--maxmemory-policy', 'allkeys-lru'] });
});
afterAll(async () => {
  await locked.stop();
  await evicting.stop();
});

/** Starts the real worker program, which is to say one sentence and end. */
async function startRefused(env: Readonly<Record<string, string>>): Promise<{ code: number | null; said: string }> {
  await using worker = startProgram(WORKER, ['start'], { FLEET_PROVIDERS: 'local', ...env });
  const code = await worker.exited;
  await expect.poll(() => worker.output()).not.toBe('');
  const said = worker.output().trim();
  expect(said).not.toContain(SECRET);
  expect(said).not.toMatch(/^\s+at /m);
  return { code, said };
}

function catchError(call: () => unknown): unknown {
  try {
    return call();
  } catch (error) {
    return error;
  }
}

const withPassword = (port: number): string => `redis://:${SECRET}@127.0.0.1:${port}`;

test('a worker with a wrong password, or none, ends 78 with one sentence', async () => {
  const urls = [withPassword(locked.port), locked.url];
  const ends = await Promise.all(urls.map(async (url) => await startRefused({ FLEET_REDIS_URL: url })));
  const end = { code: 78, said: `Redis at 127.0.0.1:${locked.port} refused our user or password` };
  expect(ends).toEqual([end, end]);
});

test('a worker whose Redis is not there ends 69 with one sentence', async () => {
  const port = await freePort();
  const { code, said } = await startRefused({ FLEET_REDIS_URL: withPassword(port) });
  expect(code).toBe(69);
  expect(said).toMatch(new RegExp(`^Redis at 127\\.0\\.0\\.1:${port} does not answer \\(.*ECONNREFUSED.*\\)$`));
});

test('a worker whose Redis may evict keys ends 78, and says how to allow it', async () => {
  const { code, said } = await startRefused({ FLEET_REDIS_URL: evicting.url });
  expect(code).toBe(78);
  expect(said).toMatch(
    /^Redis at .* may evict keys \(maxmemory-policy allkeys-lru\); .*noeviction.*FLEET_ALLOW_EVICTION=true.*$/,
  );
});

test('a worker with an unknown setting, or a provider that there is not, ends 78 and names it', async () => {
  const FLEET_REDIS_URL = inject('redisUrl');
  const [setting, provider] = await Promise.all([
    startRefused({ FLEET_REDIS_URL, FLEET_SLOT: '3' }),
    startRefused({ FLEET_REDIS_URL, FLEET_PROVIDERS: 'podman' }),
  ]);
  expect(setting).toEqual({ code: 78, said: 'unknown setting FLEET_SLOT (a typing error?)' });
  const said = 'FLEET_PROVIDERS: there is no provider "podman" (there are docker and local)';
  expect(provider).toEqual({ code: 78, said });
});

test.each([
  ['a number out of its bounds', { FLEET_SLOTS: '0' }, /FLEET_SLOTS/],
  ['a number that is none', { FLEET_LOCK_MS: 'soon' }, /FLEET_LOCK_MS/],
  ['settings that contradict each other', { FLEET_RENEW_MS: '20000' }, /must be more than/],
  [
    'a URL of another kind',
    { FLEET_REDIS_URL: `http://:${SECRET}@x` },
    /redis:\/\/ or rediss:\/\/ URL.*FLEET_REDIS_URL/s,
  ],
  ['no URL', { FLEET_REDIS_URL: undefined }, /FLEET_REDIS_URL/],
])('%s is refused and named, without the value', (_, env, words) => {
  const error = catchError(() => loadConfig({ FLEET_REDIS_URL: inject('redisUrl'), ...env }));
  expect(error).toMatchObject({ code: 'refused/config', message: expect.stringMatching(words) as string });
  expect(String(error)).not.toContain(SECRET);
});

test('a worker without a Docker engine ends 69 with one sentence', async () => {
  const hosts = ['unix:///nowhere/docker.sock', `tcp://127.0.0.1:${await freePort()}`];
  const env = { FLEET_REDIS_URL: inject('redisUrl'), FLEET_PROVIDERS: 'docker' };
  const ends = await Promise.all(hosts.map(async (host) => await startRefused({ ...env, DOCKER_HOST: host })));
  for (const { code, said } of ends) {
    expect(said).toMatch(/^the docker engine does not answer: .*(ENOENT|ECONNREFUSED).*$/);
    expect(code).toBe(69);
  }
});

test('a client is refused in the same words, and its errors hold no password', async () => {
  const port = await freePort();
  const refusals: [string, string, RegExp][] = [
    [withPassword(locked.port), 'refused/config', /refused our user or password/],
    [locked.url, 'refused/config', /refused our user or password/],
    [withPassword(port), 'refused/redis', /does not answer/],
    [evicting.url, 'refused/config', /may evict keys/],
    [`nonsense ${SECRET}`, 'refused/config', /redis:\/\/ or rediss:\/\/ URL/],
    [`http://:${SECRET}@127.0.0.1`, 'refused/config', /redis:\/\/ or rediss:\/\/ URL/],
  ];
  for (const [redisUrl, code, words] of refusals) {
    const error: unknown = await FleetClient.connect({ redisUrl }).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code, message: expect.stringMatching(words) as string });
    expect(String(error)).not.toContain(SECRET);
  }
  await using client = await FleetClient.connect({ redisUrl: evicting.url, allowEviction: true });
  expect(client).toBeDefined();
});

test('a fleet id that would break its keys is refused', async () => {
  for (const fleetId of ['', 'a}b', 'a b', 'x'.repeat(65)])
    await expect(FleetClient.connect({ redisUrl: inject('redisUrl'), fleetId })).rejects.toMatchObject({
      code: 'refused/config',
      message: expect.stringContaining('1 to 64') as string,
    });
});

test('a Redis URL of a database that is not there is refused, by the client and by the worker', async () => {
  const url = `redis://127.0.0.1:${evicting.port}/99`;
  await expect(FleetClient.connect({ redisUrl: url, allowEviction: true })).rejects.toMatchObject({
    code: 'refused/config',
    message: expect.stringContaining('has no database 99'),
  });
  const { code, said } = await startRefused({ FLEET_REDIS_URL: url, FLEET_ALLOW_EVICTION: 'true' });
  expect(code).toBe(78);
  expect(said).toContain('has no database 99');
});
