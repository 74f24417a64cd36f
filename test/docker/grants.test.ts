import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { SeedInput } from '@hermes-fleet/shared';
import { afterAll, beforeAll, expect } from 'vitest';
import { grantOf, type HermesFleet, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import { callTools, say, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;

beforeAll(async () => {
  fleet = await startHermesFleet();
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
});

const optional = (server: McpTestServer, name: string) => grantOf(server, name, { required: false });
/** A plain HTTP server on a port of its own, as a grant without headers. */
async function httpGrant(
  name: string,
  answer: RequestListener,
): Promise<{ grant: NonNullable<SeedInput['tool_accesses']>[number] } & AsyncDisposable> {
  const server = createServer(answer);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`;
  return {
    grant: { kind: 'mcp', name, required: true, connection: { transport: 'streamable_http', url } },
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

verifies(
  ['mcp:granted', 'mcp:required-down'],
  'of several servers the optional ones that are down or silent are left out by name, and the others are used',
  async () => {
    await using one = await McpTestServer.start();
    await using two = await McpTestServer.start();
    await using down = await McpTestServer.start({ mode: 'refuse' });
    await using silent = await McpTestServer.start({ mode: 'silent' });
    const ask = callTools(
      ['one', 'two'].map((name) => ({ name: `mcp__${name}__get_weather`, args: { city: 'Oslo' } })),
    );
    const { verdict, items, activation } = await fleet.run('several', turns([ask, say('done')]), {
      tool_accesses: [
        grantOf(one, 'one'),
        optional(down, 'down'),
        optional(silent, 'silent'),
        optional(two, 'two'),
        { kind: 'direct_http', name: 'plain', required: false, base_url: one.url },
      ],
      timeouts: { connect_s: 2 },
    });
    expect(verdict).toBe('ok');
    expect(outputsIn(items)[0]).toContain(one.weatherOf('Oslo'));
    expect(outputsIn(items)[1]).toContain(two.weatherOf('Oslo'));
    const gaps = activation.body?.gaps.map(({ code, detail }) => `${code} ${/"(\w+)"/.exec(detail ?? '')?.[1]}`) ?? [];
    expect(gaps.toSorted()).toEqual([
      'grant_unsupported plain',
      'mcp_server_missing down',
      'mcp_server_missing silent',
    ]);
    expect(fleet.model.callsOf('several')[0]?.bodyText).not.toMatch(/mcp__(down|silent|plain)/);
    expect(activation.body?.timings_ms['mcp']).toBeLessThan(10_000);
  },
);

verifies(
  'mcp:required-down',
  'one required server that stays silent ends the activation by its name, whatever the others are, without a model call',
  async () => {
    await using good = await McpTestServer.start();
    await using down = await McpTestServer.start({ mode: 'refuse' });
    await using silent = await McpTestServer.start({ mode: 'silent' });
    const { verdict, activation, close } = await fleet.run('one-silent', say('never'), {
      tool_accesses: [grantOf(good, 'good'), optional(down, 'down'), grantOf(silent, 'mute')],
      timeouts: { connect_s: 2 },
    });
    expect(verdict).toBe('infra/mcp_unreachable');
    expect(activation).toMatchObject({ fault: 'infrastructure', retryable: true, reward_valid: false });
    expect(activation.body?.message).toMatch(/"mute" did not answer within 2 s/);
    expect(fleet.model.callsOf('one-silent')).toHaveLength(0);
    expect(close.body?.observations.records.map(({ kind }) => kind)).toEqual(['sandbox']);
    await expect.poll(() => good.openSessions, { timeout: 5_000 }).toBe(0);
  },
);

verifies(
  ['mcp:required-down', 'mcp:secrets'],
  'a server that speaks something else is named as bad, and one that sends elsewhere is not followed',
  async () => {
    await using elsewhere = await McpTestServer.start();
    const say200 =
      (type: string, body: string): RequestListener =>
      (_, response) =>
        void response.writeHead(200, { 'content-type': type }).end(body);
    const old = { protocolVersion: '1999-01-01', capabilities: {}, serverInfo: { name: 'x', version: '1' } };
    const answers: Readonly<Record<string, RequestListener>> = {
      html: say200('text/html', '<html>hello</html>'),
      json: say200('application/json', '{"hello":1}'),
      old: say200('application/json', JSON.stringify({ jsonrpc: '2.0', id: 0, result: old })),
      empty: say200('application/json', ''),
      moved: (_, response) => void response.writeHead(307, { location: elsewhere.url }).end(),
    };
    await Promise.all(
      Object.entries(answers).map(async ([name, answer]) => {
        await using server = await httpGrant(`is_${name}`, answer);
        const { activation } = await fleet.run(`speaks-${name}`, say('never'), {
          tool_accesses: [server.grant],
          timeouts: { connect_s: 5 },
        });
        expect(activation.class, name).toBe('infra');
        expect(['mcp_bad', 'mcp_unreachable'], name).toContain(activation.code);
        if (name !== 'moved') expect(activation.code, name).toBe('mcp_bad');
        expect(activation.body?.message, name).toContain(`"is_${name}"`);
        expect(fleet.model.callsOf(`speaks-${name}`), name).toHaveLength(0);
      }),
    );
    expect(elsewhere.requests).toEqual([]);
  },
);

verifies(
  ['grant:refuse', 'mcp:names'],
  'names that are only like those of toolsets are granted, and their tools are offered (A03)',
  async () => {
    const names = ['WEB', 'web-', 'Terminal', 'memory2', 'my.file', '0x', 'x'.repeat(100)];
    await using server = await McpTestServer.start();
    const { verdict } = await fleet.run('like-toolsets', say('done'), {
      tool_accesses: names.map((name) => grantOf(server, name)),
    });
    expect(verdict).toBe('ok');
    const offered = fleet.model.callsOf('like-toolsets')[0]?.body?.tools?.map(({ function: { name } }) => name);
    for (const name of names) expect(offered).toContain(`mcp__${name.replaceAll(/[^A-Za-z0-9_]/g, '_')}__get_weather`);
  },
);

verifies(
  'mcp:names',
  'tools of two servers that get one name end the activation before the first model call',
  async () => {
    const withTool = async (tool: string) =>
      await McpTestServer.start({ tools: (each) => void each.registerTool(tool, {}, () => ({ content: [] })) });
    await using one = await withTool('b__c');
    await using other = await withTool('c');
    const { verdict, activation } = await fleet.run('clash', say('never'), {
      tool_accesses: [grantOf(one, 'a'), grantOf(other, 'a__b')],
    });
    expect(verdict, activation.body?.message ?? '').toBe('infra/mcp_bad');
    expect(activation.body?.message).toMatch(/"a(__b)?".*mcp__a__b__c.* of a(__b)? /);
    expect(fleet.model.callsOf('clash')).toHaveLength(0);
  },
);
