// The product's mailbox and fetch loops with a processor that does nothing: what a command costs by itself. With `flow` as
// its argument, the baseline: the same jobs as a BullMQ flow, each adding its result to a stream.
import { connectRedis, Dispatcher, Keys, Scripts } from '@hermes-fleet/shared';
import { loadConfig } from '@hermes-fleet/worker/config';
import { FleetWorker } from '@hermes-fleet/worker/fleet-worker';
import { createLog } from '@hermes-fleet/worker/log';
import { Mailbox } from '@hermes-fleet/worker/mailbox';
import { Runs } from '@hermes-fleet/worker/runs';
import { Slots } from '@hermes-fleet/worker/slots';
import { Worker } from 'bullmq';
import { stubProvider } from '../setup/stub-provider.ts';

const CONCURRENCY = 25;
const config = loadConfig(process.env);
const keys = new Keys(config.FLEET_ID);
const redis = connectRedis(config.FLEET_REDIS_URL, () => undefined);
const queues = connectRedis(config.FLEET_REDIS_URL, () => undefined);
const scripts = new Scripts(redis, keys);

if (process.argv[2] === 'flow') {
  const workers = ['new-stub', 'any'].map(
    (queue) =>
      new Worker<{ s: string; c: string }>(
        queue,
        async (job) => {
          await redis.xadd(
            keys.results('default'),
            '*',
            's',
            job.data.s,
            'c',
            job.data.c,
            'k',
            job.name,
            'r',
            '{"class":"ok","body":{"x":1}}',
          );
        },
        { connection: queues, prefix: keys.prefix, concurrency: CONCURRENCY, lockDuration: 15_000 },
      ),
  );
  await Promise.all(workers.map(async (worker) => await worker.waitUntilReady()));
} else {
  const log = createLog({ level: 'error', version: 'bench', workerId: 'bench' });
  const provider = stubProvider({ fleetId: config.FLEET_ID, root: '/nonexistent' });
  const slots = new Slots(scripts, 'stub', 1_000_000, CONCURRENCY);
  const engine = { id: 'stub', provider, slots, runners: { problem: undefined, warm: () => undefined } as never };
  const body = { x: 1 };
  const mailbox = new Mailbox(
    scripts,
    new Dispatcher(keys, queues),
    new Runs(scripts, 3000),
    config,
    async () => ({ class: 'ok', code: '', body, seeded: { queue: 'any', descriptor: '{}' } }),
    log,
  );
  const worker = new FleetWorker({ connection: queues, keys, config, engines: [engine], mailbox, log });
  await scripts.renewEngine('stub', 600_000);
  await worker.start();
}
process.on('SIGTERM', () => process.exit(0));
console.log(JSON.stringify({ ready: true }));
