// Searches configurations one after another: explore.ts CONFIGURATION… [--seconds N] [--mutant 'text=>text']
import { parseArgs } from 'node:util';
import { startRedis } from '../setup/redis-server.ts';
import { CONFIGURATIONS } from './configurations.ts';
import { planted } from './planted.ts';
import { search } from './search.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { seconds: { type: 'string', default: '150' }, mutant: { type: 'string' } },
});
const names = positionals.includes('all') ? Object.keys(CONFIGURATIONS) : positionals;
if (names.length === 0) throw new Error(`name one of ${Object.keys(CONFIGURATIONS).join(', ')}, or all`);
const [from, to = ''] = values.mutant?.split('=>') ?? [];
const server = await startRedis({ args: ['--appendonly', 'no'] });
let isBad = false;
for (const name of names) {
  const configuration = CONFIGURATIONS[name];
  if (configuration === undefined) throw new Error(`there is no configuration ${name}`);
  const fault = from === undefined ? undefined : planted(from, to);
  const { violation, stuckTrace, ...report } = await search(configuration, {
    redisUrl: server.url,
    seconds: Number(values.seconds),
    ...(fault === undefined ? {} : { edit: fault.edit }),
  });
  console.log(JSON.stringify({ name, ...report, violation: violation?.what, planted: fault?.wasApplied() }));
  if (violation !== undefined) console.log(`  ${[violation.what, ...violation.trace].join('\n  ')}`);
  if (report.stuck > 0) console.log(`  stuck\n  ${stuckTrace.join('\n  ')}`);
  isBad ||= violation !== undefined || report.stuck > 0;
}
await server.stop();
process.exitCode = isBad ? 2 : 0;
