// The MCP server as a process of its own. Its first line is {"url": …, "authorization": …, "salt": …}; it ends on SIGTERM,
// or with its owner where the owner gives it a pipe as stdin and --until-stdin-ends.
import { parseArgs } from 'node:util';
import { type McpMode, McpTestServer } from './mcp-server.ts';

const { values } = parseArgs({
  options: {
    port: { type: 'string', default: '0' },
    authorization: { type: 'string' },
    salt: { type: 'string' },
    mode: { type: 'string', default: 'ok' },
    'until-stdin-ends': { type: 'boolean', default: false },
  },
});
const { authorization, salt } = values;
const mcp = await McpTestServer.start({
  port: Number(values.port),
  mode: values.mode as McpMode,
  ...(authorization === undefined ? {} : { authorization }),
  ...(salt === undefined ? {} : { salt }),
});
process.stdout.write(`${JSON.stringify({ url: mcp.url, authorization: mcp.authorization, salt: mcp.salt })}\n`);
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => process.exit(0));
if (values['until-stdin-ends']) process.stdin.resume().once('close', () => process.exit(0));
