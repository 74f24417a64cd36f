import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type ActivationBody, type CommandResult, Keys, type SeedInput, sessionKey } from '@hermes-fleet/shared';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect } from 'vitest';
import { inspectAll, wholeRedis } from '../setup/far-ends.ts';
import { startFleet, type TestFleet } from '../setup/fleet.ts';
import { callTool, hold, say, type Script, silence, turns } from '../setup/model-replies.ts';
import { grantOf, outputsIn } from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import { ModelServer } from '../setup/model-server.ts';
import { type RedisServer, startRedis } from '../setup/redis-server.ts';
import { verifies } from '../setup/verifies.ts';

const marker = (name: string): string => `MARKER-${name}-${randomBytes(6).toString('hex')}`;
const PASSWORD = marker('PASSWORD');
const KEY = marker('KEY');
const WRONG_KEY = marker('WRONG');
const HEADER = marker('HEADER');
const OTHER_HEADER = marker('OTHER');

let redis: RedisServer;
let fleet: TestFleet;
let guarded: ModelServer;
let mcp: McpTestServer;
let redisUrl: string;
let keys: Keys;

beforeAll(async () => {
  redis = await startRedis({ args: ['--requirepass', PASSWORD] });
  redisUrl = `redis://:${PASSWORD}@127.0.0.1:${redis.port}`;
  guarded = await ModelServer.start({ token: KEY });
  mcp = await McpTestServer.start({ authorization: `Bearer ${HEADER}` });
  fleet = await startFleet({
    redisUrl,
    program: 'worker/src/main.ts',
    provider: 'docker',
    env: {
      FLEET_PROVIDERS: 'docker',
      FLEET_LOG_LEVEL: 'trace',
      FLEET_MODEL_TRIES: '2',
      FLEET_CREDENTIAL_GOOD: KEY,
      FLEET_CREDENTIAL_BAD: WRONG_KEY,
    },
  });
  keys = new Keys(fleet.id);
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
  await mcp.close();
  await guarded.close();
  await redis.stop();
});

/** Whatever the agent can read of environments, and of what the worker put into its sandbox. */
const SPY =
  'env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr "\\0" "\\n"; find /tmp /workspace -type f -exec cat {} +';

interface More extends Partial<SeedInput> {
  readonly url?: string;
  readonly credential?: string;
}

/** Hands one session in with its close behind. */
async function begin(name: string, script: Script, { url = guarded.url, credential = 'GOOD', ...more }: More = {}) {
  guarded.script(name, script);
  await fleet.client.submit({
    seed: fleet.seed(name, name, {
      sandbox: { image: 'hermes-fleet-base:bookworm' },
      model: { base_url: url, name, credential },
      tool_accesses: [grantOf(mcp, 'weather')],
      ...more,
    }),
    activations: [{ session_id: name, activation_id: 'a', request: { input: name, max_output_tokens: 1000 } }],
    close: { session_id: name, when: 'idle' },
  });
}
const settle = async (name: string): Promise<readonly CommandResult[]> =>
  await Promise.all(['seed', 'a', 'close'].map(async (command) => await fleet.client.wait(name, command)));
const run = async (...given: Parameters<typeof begin>): Promise<readonly CommandResult[]> => {
  await begin(...given);
  return await settle(given[0]);
};

/** Names of the keys that hold a text. */
async function keysWith(text: string): Promise<string[]> {
  const all = JSON.parse(await wholeRedis(redisUrl, fleet.id)) as [string, unknown][];
  return all.filter(([, value]) => JSON.stringify(value).includes(text)).map(([key]) => key);
}

const resultOf = (results: readonly CommandResult[]): CommandResult<ActivationBody> | undefined =>
  results[1] as CommandResult<ActivationBody> | undefined;

verifies(
  'mcp:secrets',
  'the password of Redis, the key of a Model Server and the headers of a grant are in no sandbox, log, result or key but the payload, however sessions end (S29)',
  async () => {
    const held = hold(say('done'));
    const spying = turns([
      callTool('mcp__weather__get_weather', { city: 'Rome' }),
      callTool('mcp__weather__fails', {}),
      callTool('terminal', { command: SPY }),
      held.script,
    ]);
    await begin('spies', spying);
    await begin('cut', () => callTool('terminal', { command: 'sleep 1000' }));
    await expect.poll(() => held.isHolding && guarded.callsOf('cut').length > 0, { timeout: 60_000 }).toBe(true);
    // While they run: the headers are where the next worker finds them, and nothing else is anywhere.
    const payloads = ['spies', 'cut'].map((name) => keys.payloads(sessionKey(name)));
    expect((await keysWith(HEADER)).toSorted()).toEqual(payloads.toSorted());
    for (const secret of [PASSWORD, KEY, WRONG_KEY]) expect(await keysWith(secret)).toEqual([]);
    const inspected = inspectAll(fleet.id);
    expect(inspected).toContain('hermes-fleet.role');
    expect(inspected).not.toContain('MARKER-');

    expect(await fleet.client.cancel({ sessionId: 'cut', commandId: 'a' })).toMatchObject({ accepted: true });
    held.release();
    const results = await Promise.all([
      settle('spies'),
      settle('cut'),
      run('locked', () => say('never'), { credential: 'BAD' }),
      run('shut', () => say('never'), {
        tool_accesses: [grantOf(mcp, 'shut', { headers: { authorization: `Bearer ${OTHER_HEADER}` } })],
      }),
      run('over-time', () => silence(), { timeouts: { activation_s: 2 } }),
      run('no-image', () => say('never'), { sandbox: { image: 'hermes-fleet-test:none' } }),
    ]);
    expect(results.map((each) => `${resultOf(each)?.class}/${resultOf(each)?.code}`)).toEqual([
      'ok/done',
      'cancelled/by_caller',
      'infra/model_auth',
      'infra/mcp_bad',
      'incomplete/wall_time',
      'infra/sandbox_image',
    ]);
    const [spies] = results;
    const seen = outputsIn(resultOf(spies)?.body?.response.output ?? []);
    expect(seen[0]).toContain(mcp.weatherOf('Rome'));
    expect(seen[2]).toContain('PATH=');
    expect(JSON.stringify(results)).not.toContain('MARKER-');
    expect(fleet.workers[0]?.output()).toContain('"model call failed"');
    expect(fleet.workers[0]?.output()).not.toContain('MARKER-');
    expect(await keysWith('MARKER-')).toEqual([]);
    // And nothing was taken for a secret that is none.
    expect(JSON.stringify(results)).not.toContain('[secret]');
    expect(resultOf(spies)?.body?.usage.total.total_tokens).toBe(4 * 15);
    expect(guarded.callsOf('spies')[0]?.body?.['max_tokens']).toBe(1000);
  },
);

verifies('mcp:secrets', 'a password of Redis that is no longer right is in no line of the log', async () => {
  const admin = new Redis(redisUrl);
  try {
    await admin.config('SET', 'requirepass', 'another');
    await admin.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    await admin.call('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await expect.poll(() => fleet.workers[0]?.output(), { timeout: 20_000 }).toMatch(/WRONGPASS|NOAUTH/);
    await admin.config('SET', 'requirepass', PASSWORD);
    const results = await run('after', () => say('done'));
    expect(resultOf(results)?.class).toBe('ok');
    expect(fleet.workers[0]?.output()).not.toContain('MARKER-');
  } finally {
    admin.disconnect();
  }
});

/** A server that answers `answer`, a status and a text, to each request with JSON. */
async function talkative(
  answer: (authorization: string, message: { readonly method?: string; readonly id?: unknown }) => [number, string],
): Promise<{ readonly url: string } & Disposable> {
  const server = createServer((request, response) => {
    let text = '';
    request.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
    request.once('end', () => {
      const [code, body] = answer(request.headers.authorization ?? '', text === '' ? {} : (JSON.parse(text) as object));
      response.writeHead(code, { 'content-type': 'application/json' }).end(body);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    [Symbol.dispose]: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** Where a secret is, other than where it must be. */
async function leaksOf(secret: string, results: unknown): Promise<string[]> {
  return [
    ...(JSON.stringify(results).includes(secret) ? ['results'] : []),
    ...(fleet.workers.some((worker) => worker.output().includes(secret)) ? ['log'] : []),
    ...((await keysWith(secret)).length > 0 ? ['redis'] : []),
  ];
}

verifies('mcp:secrets', 'a Model Server that repeats the key in its errors spreads it nowhere', async () => {
  const results: unknown[] = [];
  for (const code of [400, 401, 429, 500]) {
    using server = await talkative((authorization) => [code, JSON.stringify({ error: { message: authorization } })]);
    results.push(await run(`repeats-${code}`, () => say('-'), { url: `${server.url}/v1`, credential: 'BAD' }));
  }
  expect(await leaksOf(WRONG_KEY, results)).toEqual([]);
});

verifies(
  'mcp:secrets',
  'an MCP server that repeats its headers in the error of a call spreads them nowhere',
  async () => {
    using server = await talkative((authorization, { method, id }) => {
      const ok = (result: object): [number, string] => [200, JSON.stringify({ jsonrpc: '2.0', id, result })];
      if (method === 'initialize')
        return ok({
          protocolVersion: '2025-06-18',
          capabilities: { tools: {} },
          serverInfo: { name: 'x', version: '1' },
        });
      if (method === 'tools/list') return ok({ tools: [{ name: 'f', inputSchema: { type: 'object' } }] });
      return method === 'tools/call' ? [500, `not allowed: ${authorization}`] : [202, ''];
    });
    const connection = {
      transport: 'streamable_http' as const,
      url: `${server.url}/mcp`,
      headers: { authorization: `Bearer ${OTHER_HEADER}` },
    };
    const results = await run('repeats-header', turns([callTool('mcp__talks__f', {}), say('done')]), {
      tool_accesses: [{ kind: 'mcp', name: 'talks', required: true, connection }],
    });
    expect(resultOf(results)?.class).toBe('ok');
    expect(await leaksOf(OTHER_HEADER, results)).toEqual([]);
  },
);
