// A whole worker on the stub provider, as a process of its own. Settings are the product's FLEET_* variables; the folder
// of its sandboxes is FLEET_LOCAL_ROOT, its engine FLEET_TEST_ENGINE.
import { loadConfig } from '@hermes-fleet/worker/config';
import { createLog } from '@hermes-fleet/worker/log';
import { startWorker } from '@hermes-fleet/worker/start';
import { stubProvider } from './stub-provider.ts';

const { FLEET_PROVIDERS: _, ...env } = process.env;
const config = loadConfig(env);
const log = createLog({ level: config.FLEET_LOG_LEVEL, version: 'test', workerId: `stub-${process.pid}` });
const provider = stubProvider({
  fleetId: config.FLEET_ID,
  root: config.FLEET_LOCAL_ROOT,
  engine: process.env['FLEET_TEST_ENGINE'] ?? 'stub',
});
const worker = await startWorker(config, [provider], log);
let signals = 0;
process.on('SIGTERM', () => {
  if (signals++ > 0) worker.stopNow();
  else void worker.stop().then(() => process.exit(0));
});
