// The worker on the docker provider with all but a blocking exec and file transfer hidden: what many sandbox services offer.
import { loadConfig } from '@hermes-fleet/worker/config';
import { createLog } from '@hermes-fleet/worker/log';
import { dockerProvider } from '@hermes-fleet/worker/sandbox/docker';
import { startWorker } from '@hermes-fleet/worker/start';
import Docker from 'dockerode';
import { withoutStreams } from '../conformance/provider.ts';

const config = loadConfig(process.env);
const log = createLog({ level: config.FLEET_LOG_LEVEL, version: 'test', workerId: `blocking-${process.pid}` });
const provider = dockerProvider({
  docker: new Docker(),
  fleetId: config.FLEET_ID,
  runnerImage: config.FLEET_RUNNER_IMAGE,
  runnerMemoryMib: config.FLEET_RUNNER_MEMORY_MIB,
  pull: 'never',
});
const worker = await startWorker(config, [withoutStreams(provider)], log);
process.once('SIGTERM', () => void worker.stop().then(() => process.exit(0)));
