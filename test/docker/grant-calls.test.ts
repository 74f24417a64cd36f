import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect } from 'vitest';
import { z } from 'zod';
import { callsIn, grantOf, type HermesFleet, messagesIn, outputsIn, startHermesFleet } from '../setup/hermes-fleet.ts';
import { McpTestServer } from '../setup/mcp-server.ts';
import { callTool, say, type Script, textOf, turnOf, turns } from '../setup/model-replies.ts';
import { verifies } from '../setup/verifies.ts';

/** Beyond the 60 s after which the MCP SDK ends a request that it was told nothing about. */
const LONG_S = 62;
let fleet: HermesFleet;
let long: McpTestServer;

beforeAll(async () => {
  fleet = await startHermesFleet();
  // Begun at once, and waited for by the last test.
  long = await McpTestServer.start();
  await fleet.begin('long', turns([callTool('mcp__w__slow', { s: LONG_S }), say('done')]), {
    tool_accesses: [grantOf(long, 'w')],
  });
});

afterAll(async () => {
  // Where not all tests are run it is still open.
  await fleet.client.close({ session_id: 'long' });
  await fleet[Symbol.asyncDispose]();
  await long.close();
});

const countOf = (server: McpTestServer | undefined, method: string): number =>
  server?.methods.filter((each) => each === method).length ?? 0;
const called = async (server: McpTestServer, calls = 1): Promise<void> =>
  await expect.poll(() => countOf(server, 'tools/call'), { timeout: 60_000, interval: 20 }).toBe(calls);

verifies(
  'mcp:granted',
  'a tool result of 5 MB is shown in part, and is whole in the sandbox for the tools of the agent',
  async () => {
    await using server = await McpTestServer.start();
    const bytes = 5 << 20;
    const read: Script = ({ messages }) => {
      const file = /\/\S+\.txt/.exec(textOf(messages.at(-1)))?.[0] ?? '/not-told';
      return callTool('terminal', { command: `grep -o B ${file} | wc -l` });
    };
    const { verdict, items, activation } = await fleet.run(
      'big',
      turns([callTool('mcp__w__big', { n: bytes }), read, say('done')]),
      { tool_accesses: [grantOf(server, 'w')] },
    );
    expect(verdict).toBe('ok');
    expect(outputsIn(items)[0]?.length).toBeLessThan(50_000);
    expect(outputsIn(items)[1]).toContain(String(bytes));
    expect(activation.body).toMatchObject({ complete: true, counts: { mcp_calls: 1, mcp_errors: 0 } });
    expect(countOf(server, 'tools/call')).toBe(1);
  },
);

verifies(
  'mcp:granted',
  'text and structured content reach the model, other content is left out with a gap, and notifications disturb nothing',
  async () => {
    const outputSchema = { degrees: z.number() };
    await using server = await McpTestServer.start({
      tools: (each) => {
        each.server.registerCapabilities({ logging: {} });
        each.registerTool('both', { outputSchema }, () => ({
          content: [{ type: 'text', text: 'twenty-one' }],
          structuredContent: { degrees: 21 },
        }));
        each.registerTool('only', { outputSchema }, () => ({ content: [], structuredContent: { degrees: 22 } }));
        each.registerTool('mixed', {}, () => ({
          content: [
            { type: 'text', text: 'before' },
            { type: 'image', data: 'AAAA', mimeType: 'image/png' },
            { type: 'text', text: 'after' },
          ],
        }));
        each.registerTool('chatty', {}, async ({ sendNotification }) => {
          for (let progress = 1; progress <= 3; progress++) {
            await sendNotification({ method: 'notifications/progress', params: { progressToken: 'x', progress } });
            await sendNotification({ method: 'notifications/message', params: { level: 'info', data: 'at work' } });
            await sleep(200);
          }
          return { content: [{ type: 'text', text: 'took its time' }] };
        });
        each.registerTool('wrong', { outputSchema }, () => ({ content: [], structuredContent: { degrees: 'hot' } }));
      },
    });
    const tools = ['both', 'only', 'mixed', 'chatty', 'wrong'];
    const { verdict, items, activation } = await fleet.run(
      'contents',
      turns([...tools.map((tool) => callTool(`mcp__w__${tool}`, {})), say('done')]),
      { tool_accesses: [grantOf(server, 'w')] },
    );
    expect(verdict).toBe('ok');
    const [both, only, mixed, chatty, wrong] = outputsIn(items);
    expect(both).toMatch(/twenty-one[^]*"degrees": 21/);
    expect(only).toContain('"degrees": 22');
    expect(mixed).toMatch(/before[^]*after/);
    expect(chatty).toContain('took its time');
    expect(wrong).toMatch(/error[^]*expected number/);
    expect(activation.body?.gaps).toEqual([{ code: 'mcp_media_dropped', detail: 'w: mixed' }]);
    expect(activation.body?.counts).toMatchObject({ mcp_calls: 5, mcp_errors: 1 });
  },
);

verifies(
  'mcp:granted',
  'after a server has lost its session each later call is told as an error, and made once (A06)',
  async () => {
    const first = await McpTestServer.start();
    let second: McpTestServer | undefined;
    try {
      const weather = callTool('mcp__w__get_weather', { city: 'Bern' });
      const restarted: Script = async () => {
        await first.close();
        const port = Number(new URL(first.url).port);
        second = await McpTestServer.start({ port, authorization: first.authorization });
        return weather;
      };
      const { verdict, items, activation, close } = await fleet.run(
        'session-lost',
        turns([weather, restarted, weather, say('went on')]),
        { tool_accesses: [grantOf(first, 'w')] },
      );
      expect(verdict).toBe('ok');
      expect(messagesIn(items)).toEqual(['went on']);
      const [good, ...lost] = outputsIn(items);
      expect(good).toContain(first.weatherOf('Bern'));
      for (const output of lost) expect(output).toMatch(/error/i);
      expect([countOf(first, 'tools/call'), countOf(second, 'tools/call')]).toEqual([1, 2]);
      expect(activation.body?.counts).toMatchObject({ mcp_calls: 3, mcp_errors: 2 });
      const observed = close.body?.observations.records.flatMap((each) =>
        each.kind === 'tool_call' ? [each.status] : [],
      );
      expect(observed).toEqual(['completed', 'failed', 'failed']);
    } finally {
      await first.close();
      await second?.close();
    }
  },
);

/** Three calls that end at once, and a fourth that does not. */
const fourthHangs: Script = (request) =>
  turnOf(request) < 3 ? callTool('mcp__w__get_weather', { city: 'Bern' }) : callTool('mcp__w__slow', { s: 100 });

verifies(
  ['cancel:signal', 'mcp:granted'],
  'a cancel in the middle of a call ends the call at its server, and is no time-out and no error of the tool (A07)',
  async () => {
    await using server = await McpTestServer.start();
    await fleet.begin('cancel-call', fourthHangs, { tool_accesses: [grantOf(server, 'w')] });
    await called(server, 4);
    const begun = performance.now();
    await fleet.client.cancel({ sessionId: 'cancel-call', commandId: 'a' });
    const activation = await fleet.client.wait('cancel-call', 'a');
    expect(performance.now() - begun).toBeLessThan(2_000);
    expect(activation).toMatchObject({ class: 'cancelled', code: 'by_caller', retryable: false, reward_valid: false });
    await expect.poll(() => server.cancelled).toBe(1);
    await expect.poll(() => server.openSessions).toBe(0);
    expect(countOf(server, 'tools/call')).toBe(4);
    const { close, items } = await fleet.settle('cancel-call');
    expect(callsIn(items).at(-1)).toMatchObject({ name: 'mcp__w__slow', status: 'incomplete' });
    const last = close.body?.observations.records.findLast(({ kind }) => kind === 'tool_call');
    expect(last).toMatchObject({ tool_name: 'mcp__w__slow', status: 'cancelled' });
  },
);

verifies(
  ['cancel:signal', 'mcp:granted'],
  'a cancel is told of the one call that runs, and not of those that have ended',
  async () => {
    await using server = await McpTestServer.start();
    await fleet.begin('cancel-once', fourthHangs, { tool_accesses: [grantOf(server, 'w')] });
    await called(server, 4);
    await fleet.client.cancel({ sessionId: 'cancel-once', commandId: 'a' });
    await fleet.settle('cancel-once');
    // The session is ended after everything else.
    await expect.poll(() => server.openSessions).toBe(0);
    expect(countOf(server, 'notifications/cancelled')).toBe(1);
  },
);

verifies('mcp:granted', 'a call over the time of a tool is an error to the model, which goes on', async () => {
  await using server = await McpTestServer.start();
  const { verdict, items, activation } = await fleet.run(
    'over-time',
    turns([callTool('mcp__w__slow', { s: 8 }), say('went on')]),
    { tool_accesses: [grantOf(server, 'w')], timeouts: { tool_s: 2 } },
  );
  expect(verdict).toBe('ok');
  expect(outputsIn(items)[0]).toMatch(/tim(ed|e) ?-?out/i);
  expect(activation.body?.counts.mcp_errors).toBe(1);
  expect(server.cancelled).toBe(1);
});

verifies(
  'mcp:granted',
  'a connection that is cut in the middle of a call is an error to the model, which goes on',
  async () => {
    const server = await McpTestServer.start();
    const script = turns([callTool('mcp__w__slow', { s: 100 }), say('went on')]);
    await fleet.begin('cut', script, {
      tool_accesses: [grantOf(server, 'w')],
      timeouts: { tool_s: 3, activation_s: 10 },
    });
    await called(server);
    await server.close();
    const { verdict, items, activation } = await fleet.settle('cut');
    expect(verdict).toBe('ok');
    expect(outputsIn(items)[0]).toMatch(/error/i);
    expect(activation.body?.counts).toMatchObject({ mcp_calls: 1, mcp_errors: 1 });
  },
);

verifies(
  'mcp:granted',
  'a call that takes longer than the default limit of the MCP SDK is waited for (A07)',
  async () => {
    const { verdict, items, activation } = await fleet.settle('long');
    expect(verdict, activation.body?.message ?? '').toBe('ok');
    expect(outputsIn(items)[0]).toContain('slept');
    expect(countOf(long, 'tools/call')).toBe(1);
  },
);
