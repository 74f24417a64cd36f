import { afterAll, beforeAll, expect, inject } from 'vitest';
import { inspectAll, wholeRedis } from '../setup/far-ends.ts';
import { callsIn, grantOf, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import { callTool, callTools, say, textOf, turns } from '../setup/model-replies.ts';
import { weatherScript } from '../setup/model-scripts.ts';
import { verifies } from '../setup/verifies.ts';

let fleet: HermesFleet;
let slow: McpTestServer;

beforeAll(async () => {
  fleet = await startHermesFleet();
  // Begun at once, and waited for where it is looked at: 20 s are long.
  slow = await McpTestServer.start({ initializeS: 20 });
  await fleet.begin(
    'slow-start',
    weatherScript,
    { tool_accesses: [grantOf(slow, 'weather')] },
    { input: 'What is the weather in Oslo?' },
  );
});

afterAll(async () => {
  await fleet[Symbol.asyncDispose]();
  await slow.close();
});

verifies(
  'mcp:required-down',
  'a required server that refuses, is unauthorised, breaks, stays silent or sends headers only ends the activation before the first model call, by its name and in time',
  async () => {
    const modes = ['refuse', 'unauthorized', 'broken', 'silent', 'headers_only'] as const;
    await Promise.all(
      modes.map(async (mode) => {
        await using bad = await McpTestServer.start({ mode });
        await using good = await McpTestServer.start();
        const name = `down-${mode}`;
        const { activation, close } = await fleet.run(name, say('never'), {
          tool_accesses: [grantOf(good, 'fine'), grantOf(bad, `bad_${mode}`)],
          timeouts: { connect_s: 3 },
        });
        expect(activation, mode).toMatchObject({ class: 'infra', retryable: true, reward_valid: false });
        expect(['mcp_unreachable', 'mcp_bad'], mode).toContain(activation.code);
        if (mode === 'unauthorized' || mode === 'broken') expect(activation.code, mode).toBe('mcp_bad');
        else expect(activation.code, mode).toBe('mcp_unreachable');
        expect(activation.body?.message, mode).toContain(`"bad_${mode}"`);
        expect(activation.body?.message, mode).not.toContain(bad.authorization);
        expect(activation.body?.timings_ms['mcp'] ?? 0, mode).toBeLessThan(5_000);
        expect(activation.body?.response.output, mode).toEqual([]);
        expect(fleet.model.callsOf(name), mode).toHaveLength(0);
        expect(close.body?.session, mode).toEqual({ class: 'infra', code: activation.code });
        // The other server's session is not left behind.
        await expect.poll(() => good.openSessions, { timeout: 5_000 }).toBe(0);
      }),
    );
  },
);

verifies('mcp:required-down', 'an optional server that cannot be had is left out, and the result says so', async () => {
  await using bad = await McpTestServer.start({ mode: 'unauthorized' });
  const { verdict, activation } = await fleet.run('optional', say('without it'), {
    tool_accesses: [grantOf(bad, 'nice_to_have', { required: false })],
  });
  expect(verdict).toBe('ok');
  expect(activation.body?.gaps).toContainEqual(
    expect.objectContaining({ code: 'mcp_server_missing', detail: expect.stringContaining('nice_to_have') as string }),
  );
  const [call] = fleet.model.callsOf('optional');
  expect(call?.bodyText).not.toContain('mcp__');
});

verifies(
  'mcp:required-down',
  'a server that lists no tool is connected, and its activation runs without tools of it',
  async () => {
    await using empty = await McpTestServer.start({ mode: 'no_tools' });
    const { verdict } = await fleet.run('no-tools', say('done'), { tool_accesses: [grantOf(empty, 'empty')] });
    expect(verdict).toBe('ok');
  },
);

verifies(
  ['cancel:signal', 'mcp:required-down'],
  'a cancel while a silent server is being connected ends the activation within 2 s',
  async () => {
    await using silent = await McpTestServer.start({ mode: 'silent' });
    await fleet.begin('cancel-connect', say('never'), { tool_accesses: [grantOf(silent, 'mute')] });
    await expect.poll(() => silent.requests.length, { timeout: 60_000, interval: 20 }).toBeGreaterThan(0);
    const begun = performance.now();
    expect(await fleet.client.cancel({ sessionId: 'cancel-connect', commandId: 'a' })).toEqual({ accepted: true });
    const activation = await fleet.client.wait('cancel-connect', 'a');
    expect(performance.now() - begun).toBeLessThan(2_000);
    expect(activation).toMatchObject({ class: 'cancelled', code: 'by_caller' });
    expect(fleet.model.callsOf('cancel-connect')).toHaveLength(0);
    await fleet.settle('cancel-connect');
  },
);

verifies(
  ['mcp:granted', 'mcp:secrets'],
  'granted headers reach their server and no other, and are in no sandbox, log, job or result',
  async () => {
    await using one = await McpTestServer.start({ authorization: 'Bearer MARKER-ONE-5d1f' });
    await using two = await McpTestServer.start({ authorization: 'Bearer MARKER-TWO-8c3e' });
    const inspected: string[] = [];
    const script = (server: string) =>
      turns([
        callTool(`mcp__${server}__get_weather`, { city: 'Rome' }),
        callTool('terminal', { command: 'env; cat /proc/[0-9]*/environ | tr "\\0" "\\n"; ls -la /workspace' }),
        callTool(`mcp__${server}__fails`, {}),
        callTool(`mcp__${server}__throws`, {}),
        () => {
          inspected.push(inspectAll(fleet.id));
          return say('done');
        },
      ]);
    const rollouts = await Promise.all([
      fleet.run('secret-one', script('alpha'), {
        tool_accesses: [grantOf(one, 'alpha', { headers: { 'x-extra': 'MARKER-EXTRA-77aa' } })],
      }),
      fleet.run('secret-two', script('beta'), { tool_accesses: [grantOf(two, 'beta')] }),
      // An error that comes before anything: its text must not repeat what was sent.
      fleet.run('secret-bad', say('never'), {
        tool_accesses: [grantOf(one, 'gamma', { headers: { authorization: 'Bearer MARKER-WRONG-1b9d' } })],
      }),
    ]);
    expect(rollouts.map(({ verdict }) => verdict)).toEqual(['ok', 'ok', 'infra/mcp_bad']);
    const sentTo = (server: McpTestServer) => JSON.stringify(server.requests.map(({ headers }) => headers));
    expect(
      one.requests
        .filter(({ status }) => status !== 401)
        .every(({ headers }) => headers['x-extra'] === 'MARKER-EXTRA-77aa'),
    ).toBe(true);
    expect(sentTo(one)).not.toContain('MARKER-TWO');
    expect(sentTo(two)).not.toMatch(/MARKER-(ONE|EXTRA|WRONG)/);
    expect(outputsIn(rollouts[0]?.items ?? []).join()).toContain('The weather in Rome');
    expect(callsIn(rollouts[1]?.items ?? [])).toHaveLength(4);
    expect(JSON.stringify(fleet.model.calls.map(({ bodyText, headers }) => [bodyText, headers]))).not.toContain(
      'MARKER-',
    );
    expect(inspected.join().length).toBeGreaterThan(1000);
    expect(inspected.join()).not.toContain('MARKER-');
    expect(JSON.stringify(rollouts)).not.toContain('MARKER-');
    expect(fleet.workers.map((worker) => worker.output()).join()).not.toContain('MARKER-');
    expect(await wholeRedis(inject('redisUrl'), fleet.id)).not.toContain('MARKER-');
  },
);

verifies(
  'mcp:granted',
  'a server that one session was granted is neither offered to another nor reachable from it',
  async () => {
    await using server = await McpTestServer.start();
    const ask = turns([callTool('mcp__private__get_weather', { city: 'Bonn' }), say('done')]);
    const [granted, other] = await Promise.all([
      fleet.run('has-grant', ask, { tool_accesses: [grantOf(server, 'private')] }),
      fleet.run('has-none', ask),
    ]);
    expect(granted.activation.body?.counts.mcp_calls).toBe(1);
    expect(other.activation.body?.counts.mcp_calls).toBe(0);
    expect(fleet.model.callsOf('has-none')[0]?.bodyText).not.toContain('mcp__private');
    expect(server.methods.filter((method) => method === 'tools/call')).toHaveLength(1);
  },
);

verifies(
  'mcp:names',
  'the response says mcp__server__tool as granted, and the captured calls keep the name that the model saw',
  async () => {
    const servers = ['weather', 'my_srv', 'my-srv2', 'a__b'] as const;
    const tools = ['get_weather', 'get-forecast'] as const;
    const started = await Promise.all(
      servers.map(
        async () =>
          await McpTestServer.start({
            tools: (server) => {
              for (const tool of tools)
                server.registerTool(tool, {}, () => ({ content: [{ type: 'text', text: `${tool} ran` }] }));
            },
          }),
      ),
    );
    try {
      const cleaned = (name: string) => name.replaceAll(/[^A-Za-z0-9_]/g, '_');
      const pairs = servers.flatMap((server) => tools.map((tool) => ({ server, tool })));
      const { verdict, items, activation, close } = await fleet.run(
        'names',
        turns([
          ({ tools: offered }) => {
            const names = new Set(offered?.map(({ function: { name } }) => name));
            const asked = pairs.map(({ server, tool }) => `mcp__${cleaned(server)}__${cleaned(tool)}`);
            const missing = asked.filter((name) => !names.has(name));
            return missing.length > 0
              ? say(`not offered: ${missing.join()}`)
              : callTools(asked.map((name) => ({ name, args: {} })));
          },
          say('done'),
        ]),
        { tool_accesses: servers.map((name, index) => grantOf(started[index] as McpTestServer, name)) },
      );
      expect(messagesIn(items)).toEqual(['done']);
      expect(verdict).toBe('ok');
      expect(callsIn(items).map(({ name }) => name)).toEqual(
        pairs.map(({ server, tool }) => `mcp__${server}__${tool}`),
      );
      expect(outputsIn(items).map((output) => /get[\w-]+ ran/.exec(output)?.[0])).toEqual(
        pairs.map(({ tool }) => `${tool} ran`),
      );
      expect(activation.body?.integrity).toBe('captured');
      const observed = close.body?.observations.records.filter(({ kind }) => kind === 'tool_call') ?? [];
      expect(observed.map((record) => ('tool_name' in record ? record.tool_name : undefined))).toEqual(
        pairs.map(({ server, tool }) => `mcp__${cleaned(server)}__${cleaned(tool)}`),
      );
    } finally {
      await Promise.all(started.map(async (server) => await server.close()));
    }
  },
);

verifies(
  ['mcp:names', 'mcp:required-down'],
  'tools of one server whose names collide after cleaning fail the activation before the first model call',
  async () => {
    await using server = await McpTestServer.start({
      tools: (each) => {
        for (const tool of ['get_weather', 'get-weather']) each.registerTool(tool, {}, () => ({ content: [] }));
      },
    });
    const { verdict, activation } = await fleet.run('collide', say('never'), {
      tool_accesses: [grantOf(server, 'weather')],
    });
    expect(verdict).toBe('infra/mcp_bad');
    expect(activation.body?.message).toMatch(/"weather".*mcp__weather__get_weather/);
    expect(fleet.model.callsOf('collide')).toHaveLength(0);
  },
);

verifies('grant:refuse', 'grants that cannot be given are refused at seed by their name', async () => {
  await using server = await McpTestServer.start();
  const refused = async (accesses: Parameters<HermesFleet['seedOf']>[2]) =>
    await fleet.client.submit({ seed: fleet.seedOf('refused', 'refused', accesses) }).then(
      () => 'accepted',
      (error: unknown) =>
        error instanceof Error ? `${'code' in error ? String(error.code) : ''}: ${error.message}` : '',
    );
  for (const name of ['web', 'terminal', 'file', 'memory', 'kanban', 'delegation', 'hermes-cli'])
    expect(await refused({ tool_accesses: [grantOf(server, name)] })).toMatch(new RegExp(`^refused/\\w+: .*"${name}"`));
  expect(await refused({ tool_accesses: [grantOf(server, 'my-srv'), grantOf(server, 'my_srv')] })).toMatch(
    /^refused\/.*my_srv/,
  );
  expect(
    await refused({ tool_accesses: [{ kind: 'direct_http', name: 'plain', required: true, base_url: server.url }] }),
  ).toMatch(/^refused\/grant_unsupported: .*"plain"/);
  expect(server.requests).toHaveLength(0);
});

verifies(
  'mcp:granted',
  'errors, images and a server that lost its session are told to the model, counted, and called once',
  async () => {
    let port = 0;
    const first = await McpTestServer.start();
    port = Number(new URL(first.url).port);
    let second: McpTestServer | undefined;
    try {
      const { verdict, items, activation } = await fleet.run(
        'mcp-errors',
        turns([
          callTool('mcp__weather__fails', {}),
          callTool('mcp__weather__throws', {}),
          callTool('mcp__weather__image', {}),
          async () => {
            await first.close();
            second = await McpTestServer.start({ port, authorization: first.authorization });
            return callTool('mcp__weather__get_weather', { city: 'Bern' });
          },
          ({ messages }) => say(textOf(messages.at(-1))),
        ]),
        { tool_accesses: [grantOf(first, 'weather')] },
      );
      expect(verdict).toBe('ok');
      const [fails, throws, , lost] = outputsIn(items);
      expect(fails).toContain('no such station');
      expect(throws).toContain('kaput');
      expect(lost).toMatch(/error/i);
      expect(activation.body?.counts).toMatchObject({ mcp_calls: 4, mcp_errors: 3 });
      expect(second?.methods.filter((method) => method === 'tools/call')).toHaveLength(1);
      expect(activation.body?.gaps.map(({ code }) => code)).toContain('mcp_media_dropped');
    } finally {
      await first.close();
      await second?.close();
    }
  },
);

verifies('mcp:required-down', 'a server that takes 20 s to answer is waited for', async () => {
  const { verdict, items } = await fleet.settle('slow-start');
  expect(verdict).toBe('ok');
  expect(messagesIn(items)).toEqual([slow.weatherOf('Oslo')]);
});
