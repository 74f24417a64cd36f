// The scripted Model Server as a process of its own. Its first line is {"url": …}; it ends on SIGTERM, or with its owner
// where the owner gives it a pipe as stdin and --until-stdin-ends.
import { appendFileSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import type { Script } from './model-replies.ts';
import { echoScript, weatherScript } from './model-scripts.ts';
import { ModelServer } from './model-server.ts';

const { values } = parseArgs({
  options: {
    port: { type: 'string', default: '0' },
    token: { type: 'string' },
    /** Module that exports `scripts`, a record of scripts by model name, added to `weather` and `echo`. */
    scripts: { type: 'string' },
    /** File that gets a line of JSON for each request. */
    log: { type: 'string' },
    'with-tokens': { type: 'boolean', default: false },
    'until-stdin-ends': { type: 'boolean', default: false },
  },
});
const { log } = values;
const model = await ModelServer.start({
  port: Number(values.port),
  withTokens: values['with-tokens'],
  ...(values.token === undefined ? {} : { token: values.token }),
  ...(log === undefined
    ? {}
    : {
        onCall: ({ method, path: url, body, receivedAt }) =>
          appendFileSync(log, `${JSON.stringify({ method, path: url, received_at_ms: receivedAt, body })}\n`),
      }),
});
model.script('weather', weatherScript).script('echo', echoScript);
if (values.scripts !== undefined) {
  const module = (await import(pathToFileURL(path.resolve(values.scripts)).href)) as {
    scripts: Readonly<Record<string, Script>>;
  };
  for (const [name, script] of Object.entries(module.scripts)) model.script(name, script);
}
process.stdout.write(`${JSON.stringify({ url: model.url })}\n`);
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => process.exit(0));
if (values['until-stdin-ends']) process.stdin.resume().once('close', () => process.exit(0));
