// Whether the search sees planted faults: mutants.ts [--seconds N]
import { parseArgs } from 'node:util';
import { startRedis } from '../setup/redis-server.ts';
import { CONFIGURATIONS } from './configurations.ts';
import { planted } from './planted.ts';
import { PLANTED_FAULTS } from './planted-list.ts';
import { search } from './search.ts';

const { values } = parseArgs({ options: { seconds: { type: 'string', default: '25' } } });
const server = await startRedis({ args: ['--appendonly', 'no'] });
let seen = 0;
let unexpected = 0;
for (const { what, configuration, from, to, secondLine } of PLANTED_FAULTS) {
  const fault = planted(from, to);
  const report = await search(CONFIGURATIONS[configuration] ?? { plan: [], budget: {} }, {
    redisUrl: server.url,
    edit: fault.edit,
    seconds: Number(values.seconds),
  });
  const found = report.violation?.what ?? (report.stuck > 0 ? `${report.stuck} states stuck` : undefined);
  if (found !== undefined) seen++;
  if (!fault.wasApplied() || (found === undefined) !== (secondLine !== undefined)) unexpected++;
  const outcome = found ?? `survived (second line: ${secondLine ?? 'none'})`;
  console.log(`${what} | ${configuration} | ${fault.wasApplied() ? '' : 'NOT APPLIED '}${outcome} | ${report.states}`);
}
await server.stop();
console.log(`${seen} of ${PLANTED_FAULTS.length} seen, ${unexpected} not as expected`);
process.exitCode = unexpected > 0 ? 1 : 0;
