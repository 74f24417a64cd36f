// `npm run bench`: the rows of design.md §12, each beside its baseline in the same run. --deep waits 100,000 sessions deep
// (default 20,000); --only NAME runs one group.
import { spawnSync } from 'node:child_process';
import { parseArgs } from 'node:util';
import { activationRows } from './activations.ts';
import { depthRows, dispatchRow } from './dispatch.ts';
import { cancelRow, idleRow, takeoverRow } from './fleet.ts';
import { placementRows } from './placements.ts';
import { report, type Row } from './report.ts';
import { commandRows, lifeRows } from './sandboxes.ts';

const { values } = parseArgs({ options: { deep: { type: 'boolean', default: false }, only: { type: 'string' } } });
const hasEngine = spawnSync('docker', ['image', 'inspect', 'hermes-fleet-runner'], { timeout: 10_000 }).status === 0;
const groups: Record<string, () => Promise<Row[]>> = {
  dispatch: async () => [await dispatchRow()],
  depth: async () => await depthRows(values.deep ? 100_000 : 20_000),
  ...(hasEngine
    ? { activations: activationRows, commands: commandRows, life: lifeRows, placements: placementRows }
    : {}),
  cancel: async () => [await cancelRow()],
  takeover: async () => [await takeoverRow()],
  idle: async () => [await idleRow()],
};
if (!hasEngine)
  console.log('not run: activations, commands, life, placements (no Docker engine with the runner image)');
const rows: Row[] = [];
for (const [name, run] of Object.entries(groups)) {
  if (values.only !== undefined && values.only !== name) continue;
  console.log(`bench: ${name}`);
  rows.push(...(await run()));
}
report(rows);
process.exit(0);
