import { afterAll, beforeAll, expect } from 'vitest';
import {
  grantOf,
  type HermesFleet,
  messagesIn,
  outputsIn,
  type SeedMore,
  startHermesFleet,
} from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import { callTool, type Reply, say, type Script, silence, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

/** A port at which nobody listens: discard. */
const DEAD_PROXY = 'http://user:MARKER-PROXY-6b1c@127.0.0.1:9';
let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet({ env: { FLEET_MODEL_TRIES: '2' } });
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

verifies(
  ['result:class', 'result:collect'],
  'the limit of each phase is told by its name, and nothing takes much longer than its limit (S22)',
  async () => {
    await using silent = await McpTestServer.start({ mode: 'silent' });
    const run = async (name: string, script: Script | Reply, more: SeedMore) => {
      const rollout = await fleet.run(name, script, more);
      return { ...rollout, message: rollout.activation.body?.message ?? rollout.seed.body?.message };
    };
    const [seed, connect, tool, call, activation, close] = await Promise.all([
      run('limit-seed', say('never'), { timeouts: { seed_s: 0.05 } }),
      run('limit-connect', say('never'), { timeouts: { connect_s: 1 }, tool_accesses: [grantOf(silent, 'mute')] }),
      run('limit-tool', turns([callTool('terminal', { command: 'sleep 1000' }), say('went on')]), {
        timeouts: { tool_s: 1 },
      }),
      run('limit-call', silence(), { timeouts: { model_call_s: 1 } }),
      run('limit-activation', silence(), { timeouts: { activation_s: 1 } }),
      run('limit-close', say('done'), {
        timeouts: { close_s: 4 },
        collect: {
          commands: [
            { name: 'patch', argv: ['echo', 'kept'] },
            { name: 'slow', argv: ['sleep', '1000'] },
          ],
        },
      }),
    ]);
    expect([seed.verdict, seed.message]).toEqual(['infra/timeout_seed', 'the seed was not done within 0.05 s']);
    expect([connect.verdict, connect.message]).toEqual([
      'infra/mcp_unreachable',
      'MCP server "mute" did not answer within 1 s',
    ]);
    expect(messagesIn(tool.items)).toEqual(['went on']);
    expect(outputsIn(tool.items)[0]).toMatch(/timed out after 1/);
    expect([call.verdict, call.message]).toEqual([
      'infra/model_unreachable',
      `${fleet.model.url}/chat/completions did not answer within 1 s`,
    ]);
    expect([activation.verdict, activation.message]).toEqual([
      'incomplete/wall_time',
      'the activation was not done within 1 s',
    ]);
    expect(close.close).toMatchObject({ class: 'ok', body: { sandbox: 'removed' } });
    expect(close.close.body?.collected?.commands).toMatchObject({
      patch: { exit_code: 0, stdout: 'kept\n' },
      slow: { error: expect.stringContaining("its share of the close's time") as string },
    });
    expect(close.close.body?.timings_ms['total']).toBeLessThan(10_000);
    for (const { activation: result } of [connect, tool, activation])
      expect(result.body?.timings_ms['total']).toBeLessThan(10_000);
  },
);

verifies('result:collect', 'a command that hangs costs nothing of what is collected besides', async () => {
  const { close } = await fleet.run('collected', say('done'), {
    timeouts: { close_s: 3 },
    collect: {
      commands: [
        { name: 'patch', argv: ['echo', 'kept'] },
        { name: 'slow', argv: ['sleep', '1000'] },
      ],
      files: ['/etc/hostname'],
    },
  });
  expect(close.body?.collected?.commands['patch']?.stdout).toBe('kept\n');
  expect(close.body?.collected?.files[0]?.text).toBe('sandbox\n');
});

verifies(
  ['mcp:granted', 'model:no-reach-needed'],
  "proxies in the environment of the worker and of the sandbox are in nobody's way (S21)",
  async () => {
    const proxies = Object.fromEntries(
      ['http_proxy', 'https_proxy', 'all_proxy'].flatMap((name) => [
        [name, DEAD_PROXY],
        [name.toUpperCase(), DEAD_PROXY],
      ]),
    );
    await using server = await McpTestServer.start();
    await using proxied = await startHermesFleet({ env: { ...proxies, NODE_USE_ENV_PROXY: '1' } });
    const ask = turns([
      callTool('mcp__w__get_weather', { city: 'Oslo' }),
      callTool('terminal', { command: 'echo "$HTTP_PROXY $https_proxy"' }),
      say('done'),
    ]);
    const { verdict, items } = await proxied.run('proxied', ask, {
      sandbox: { env: proxies },
      tool_accesses: [grantOf(server, 'w')],
    });
    expect(verdict).toBe('ok');
    expect(outputsIn(items)[0]).toContain(server.weatherOf('Oslo'));
    // The task's own commands have what the seed gave them.
    expect(outputsIn(items)[1]).toContain(`${DEAD_PROXY} ${DEAD_PROXY}`);
    expect(proxied.workers[0]?.output()).not.toContain('MARKER-PROXY');
  },
);
