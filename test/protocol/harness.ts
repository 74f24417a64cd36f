// Fault run: harness.ts [--sessions N] [--seconds N] [--mode calm|faults|outage|kill]
import { parseArgs } from 'node:util';
import { faultRun } from './fault-run.ts';
import { MODES } from './harness-faults.ts';

const { values } = parseArgs({
  options: {
    sessions: { type: 'string', default: '250' },
    seconds: { type: 'string', default: '30' },
    mode: { type: 'string', default: 'faults' },
  },
});
const mode = MODES.find((name) => name === values.mode);
if (mode === undefined) throw new Error(`mode is one of ${MODES.join(', ')}`);
const report = await faultRun({ sessions: Number(values.sessions), seconds: Number(values.seconds), mode });
console.log(JSON.stringify(report, null, 2));
process.exit(report.violations.length > 0 ? 1 : 0);
