import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { expect, test } from 'vitest';
import { type McpMode, McpTestServer } from '../setup/mcp-server.ts';

const GIVE_UP_MS = 500;

async function connect(server: McpTestServer, timeout = 10_000): Promise<Client> {
  const client = new Client({ name: 'test', version: '1' });
  const headers = { authorization: server.authorization };
  const transport = new StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers } });
  try {
    await client.connect(transport, { timeout });
    return client;
  } catch (error) {
    await client.close();
    throw error;
  }
}

const call = (client: Client, name: string, args: Record<string, unknown> = {}) =>
  client.callTool({ name, arguments: args });

test('a client with the header gets a sentence that differs from server to server', async () => {
  await using one = await McpTestServer.start();
  await using other = await McpTestServer.start();
  const client = await connect(one);
  expect(await call(client, 'get_weather', { city: 'Oslo' })).toMatchObject({
    content: [{ type: 'text', text: one.weatherOf('Oslo') }],
  });
  expect(one.weatherOf('Oslo')).toMatch(/^The weather in Oslo is \w+, \d+ degrees \(station \d+\)\.$/);
  expect(other.weatherOf('Oslo')).not.toBe(one.weatherOf('Oslo'));
  expect(one.methods).toEqual(expect.arrayContaining(['initialize', 'notifications/initialized', 'tools/call']));
  await client.close();
});

test('every tool does what its name says', async () => {
  await using server = await McpTestServer.start();
  const client = await connect(server);
  const { tools } = await client.listTools();
  expect(tools.map((tool) => tool.name)).toEqual(['get_weather', 'big', 'fails', 'throws', 'slow', 'image']);
  expect(await call(client, 'big', { n: 9 })).toMatchObject({ content: [{ text: 'BBBBBBBBB' }] });
  expect(await call(client, 'fails')).toMatchObject({ isError: true });
  expect(await call(client, 'throws')).toMatchObject({ isError: true, content: [{ text: 'kaput' }] });
  expect(await call(client, 'slow', { s: 0.01 })).toMatchObject({ content: [{ text: 'slept' }] });
  expect(await call(client, 'image')).toMatchObject({ content: [{ type: 'image', mimeType: 'image/png' }] });
  await client.close();
});

test('a call that its client gives up is counted as cancelled', async () => {
  await using server = await McpTestServer.start();
  const client = await connect(server);
  const slow = { name: 'slow', arguments: { s: 60 } };
  await expect(client.callTool(slow, undefined, { timeout: 100 })).rejects.toThrow(/timed out/);
  await expect.poll(() => server.cancelled).toBe(1);
  await client.close();
});

test('a server without tools lists none', async () => {
  await using server = await McpTestServer.start({ mode: 'no_tools' });
  const client = await connect(server);
  expect((await client.listTools()).tools).toEqual([]);
  await client.close();
});

test.each<[McpMode, RegExp]>([
  ['refuse', /fetch failed/],
  ['unauthorized', /unauthorized/],
  ['broken', /500|it broke/],
  ['silent', /timed out/],
  ['headers_only', /timed out/],
])('in mode %s no client gets in', async (mode, message) => {
  await using server = await McpTestServer.start({ mode });
  await expect(connect(server, GIVE_UP_MS)).rejects.toThrow(message);
  expect(server.openSessions).toBe(0);
});

test('a slow server takes its time to initialize, and works', async () => {
  await using server = await McpTestServer.start({ initializeS: 0.3 });
  await expect(connect(server, 50)).rejects.toThrow(/timed out/);
  const client = await connect(server);
  expect((await client.listTools()).tools).toHaveLength(6);
  await client.close();
});
