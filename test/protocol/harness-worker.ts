// A stub worker in the contract's order, as a process of a fault run. Its options are its one argument, as JSON.
import { setTimeout as sleep } from 'node:timers/promises';
import type { Job as BullJob, Processor } from 'bullmq';
import { DelayedError, Worker } from 'bullmq';
import type { JobData } from '@hermes-fleet/shared';
import {
  addressOf,
  chance,
  HarnessFleet,
  type HarnessOptions,
  LEASE_MS,
  LOCK_MS,
  MAX_BEGINS,
  RENEW_MS,
  retryStrategy,
  SEED_QUEUE,
  STALLED_MS,
} from './harness-fleet.ts';
import { maintain } from './harness-maintenance.ts';
import { newNonce, Run } from './harness-run.ts';

const options = JSON.parse(process.argv[2] ?? '{}') as HarnessOptions;
const fleet = new HarnessFleet(options);
const { engine } = options;
/** By nonce, never by job id. */
const live = new Map<string, Run>();
const counts: Record<string, number> = {};
const count = (what: string): void => void (counts[what] = (counts[what] ?? 0) + 1);

async function giveBack(job: BullJob<JobData>, token: string | undefined, ms: number): Promise<void> {
  try {
    await job.moveToDelayed(Date.now() + ms, token);
  } catch {
    return count('job was not ours to give back');
  }
  throw new DelayedError();
}

async function perform(
  run: Run,
  isTaken: boolean,
  execute: () => ReturnType<Run['execute']>,
): ReturnType<Run['execute']> {
  const timer = setInterval(() => void run.beat(), RENEW_MS);
  try {
    const ended = execute();
    // Closes the window of a cancel message that was sent before we listened.
    if (isTaken) void run.beat();
    return await ended;
  } finally {
    clearInterval(timer);
    run.isEnded = true;
    live.delete(run.nonce);
  }
}

const processor: Processor<JobData> = async (job, token, signal) => {
  const { s: key, c: commandId } = job.data;
  let run = new Run(fleet, engine, key, { commandId, name: job.name, jobId: job.id ?? '' }, newNonce());
  signal?.addEventListener('abort', () => run.abort.abort('cancelled'));
  live.set(run.nonce, run);
  try {
    if (run.kind === 'seed') {
      const member = `${key}.${run.nonce}`;
      const admitted = await fleet.scripts.admit(engine, member, LEASE_MS, options.limit);
      if (admitted !== 'ok') return await giveBack(job, token, 200 + Math.random() * 300);
      run.member = member;
    }
    const begun = await fleet.scripts.begin(addressOf(key), commandId, run.nonce, MAX_BEGINS);
    count(begun.status === 'begun' ? begun.view.verdict : begun.status);
    if (begun.status !== 'begun') {
      await run.release('not begun');
      if (begun.status === 'suspect') return await giveBack(job, token, begun.waitMs);
      if (begun.status === 'done') await fleet.add(begun.job, key);
      return;
    }
    let view = begun.view;
    for (let isTaken = false; ; isTaken = true) {
      const current = run;
      const ended = await perform(current, isTaken, async () => await current.execute(view));
      if (ended === undefined) return count('not ours any more');
      if ('again' in ended) {
        await fleet.add(ended.again, key);
        if (ended.again.jobId === job.id) await giveBack(job, token, 200);
        return;
      }
      if (ended.next.taken === undefined) return await fleet.add(ended.next.job, key);
      count('taken');
      view = ended.next.taken.view;
      run = new Run(fleet, engine, key, ended.next.taken.job, view.fence.split('.')[1] ?? '');
      live.set(run.nonce, run);
    }
  } finally {
    run.isEnded = true;
    live.delete(run.nonce);
  }
};

const { hostname: host, port } = new URL(options.redisUrl);
const connection = { host, port: Number(port), maxRetriesPerRequest: null, retryStrategy };
const workers = [SEED_QUEUE, 'any', `engine-${engine}`].map((queue) => {
  const worker = new Worker(queue, processor, {
    connection,
    prefix: fleet.keys.prefix,
    concurrency: queue === SEED_QUEUE ? 12 : 25,
    lockDuration: LOCK_MS,
    stalledInterval: STALLED_MS,
    maxStalledCount: 1e6,
    drainDelay: 5,
  });
  worker.on('error', () => undefined);
  worker.on('failed', (_job, error) => {
    count('failed jobs');
    console.error(options.name, 'failed', error.message);
  });
  return worker;
});

const messages = fleet.redis.duplicate();
messages.on('error', () => undefined);
messages.on('message', (_channel, message) => {
  for (const run of live.values()) if (message === `${run.key} ${run.commandId}`) run.abort.abort('cancelled');
});
void messages.subscribe(fleet.keys.cancelChannel).catch(() => undefined);

maintain(fleet, options, live, count);
process.on('disconnect', () => process.exit(0));
setInterval(() => process.send?.(counts), 500);
await Promise.all(workers.map(async (worker) => await worker.waitUntilReady()));
process.send?.('ready');
while (options.blocks) {
  await sleep(5000);
  const until = performance.now() + 2000 + Math.random() * 1500;
  if (chance(0.5)) while (performance.now() < until);
}
