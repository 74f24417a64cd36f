import { setTimeout as sleep } from 'node:timers/promises';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { z } from 'zod';

const SKIES = ['sunny', 'cloudy', 'rainy', 'windy', 'foggy', 'snowy', 'stormy'];

/** The sentence of one server about one city: known to who knows its salt, and to no script. */
export function weatherSentence(salt: string, city: string): string {
  let hash = 5381;
  for (const character of `${salt}/${city}`) hash = (hash * 33 + (character.codePointAt(0) ?? 0)) >>> 0;
  return `The weather in ${city} is ${SKIES[hash % SKIES.length]}, ${(hash >>> 8) % 40} degrees (station ${salt}).`;
}

const text = (content: string) => ({ content: [{ type: 'text' as const, text: content }] });

export interface ToolHooks {
  readonly salt: string;
  readonly onCancelled: () => void;
}

/** A server object for one MCP session, with the tools that tests need. */
export function toolServer(
  { salt, onCancelled }: ToolHooks,
  { hasTools, tools }: { hasTools: boolean; tools?: ((server: McpServer) => void) | undefined },
): McpServer {
  const server = new McpServer({ name: 'weather', version: '1.0' }, { instructions: 'ask me about the weather' });
  if (!hasTools) {
    // With a handler for its list, and nothing in that list.
    server.registerTool('gone', {}, () => text('')).disable();
    return server;
  }
  if (tools !== undefined) {
    tools(server);
    return server;
  }
  const register = server.registerTool.bind(server);
  register('get_weather', { description: 'Weather of a city.', inputSchema: { city: z.string() } }, ({ city }) =>
    text(weatherSentence(salt, city)),
  );
  register('big', { description: 'A long text.', inputSchema: { n: z.number() } }, ({ n }) => text('B'.repeat(n)));
  register('fails', { description: 'Answers with an error.', inputSchema: {} }, () => ({
    ...text('no such station'),
    isError: true,
  }));
  register('throws', { description: 'Breaks.', inputSchema: {} }, () => {
    throw new Error('kaput');
  });
  register('slow', { description: 'Takes s seconds.', inputSchema: { s: z.number() } }, async ({ s }, { signal }) => {
    try {
      await sleep(s * 1000, undefined, { signal });
    } catch {
      onCancelled();
    }
    return text('slept');
  });
  register('image', { description: 'An image.', inputSchema: {} }, () => ({
    content: [{ type: 'image', data: Buffer.from('no real image').toString('base64'), mimeType: 'image/png' }],
  }));
  return server;
}
