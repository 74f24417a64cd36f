import {
  ANY_QUEUE,
  engineQueue,
  type JobData,
  type Keys,
  newEngineQueue,
  newQueue,
  reasonOf,
} from '@hermes-fleet/shared';
import { DelayedError, type Job, Worker } from 'bullmq';
import type { Redis } from 'ioredis';
import type { Config } from './config.ts';
import type { Engine } from './engine.ts';
import { type Log, RateLimitedWarning } from './log.ts';
import type { Mailbox } from './mailbox.ts';

/** BullMQ gives a processor its abort signal only when it declares three plain parameters (6.7.0 `processor.length >= 3`). */
const SIGNAL_ARITY = 3;
/** Idle wait of the blocking fetch, in seconds. */
const DRAIN_DELAY_S = 30;
/** How long a free slot may wait for a job's end before the fetch loop is woken for it. */
const WAKE_MS = 100;
/** A dead owner's job is handed out again however often it was; the begins are counted in the record. */
const MAX_STALLED_COUNT = 1_000_000;

type Processor = (job: Job<JobData>, token: string | undefined, signal: AbortSignal | undefined) => Promise<void>;

export interface FleetWorkerOptions {
  readonly connection: Redis;
  readonly keys: Keys;
  readonly config: Config;
  readonly engines: readonly Engine[];
  readonly mailbox: Mailbox;
  readonly log: Log;
}

/** One queue that this process fetches from. */
interface Fetcher {
  readonly worker: Worker<JobData, void>;
  /** Set for a queue of seeds, which is fetched from only with a free slot in hand. */
  readonly engine: Engine | undefined;
  /** Processors that are running a seed; those that went on to a later command hold no start any more. */
  seeding: number;
  active: number;
  waking: NodeJS.Timeout | undefined;
}

/** The only file that knows BullMQ's worker: its queues, its jobs and its signals, on the one side; the mailbox on the other. */
export class FleetWorker {
  readonly #options: FleetWorkerOptions;
  readonly #fetchers: Fetcher[] = [];
  readonly #warnings: RateLimitedWarning;
  #isDraining = false;

  constructor(options: FleetWorkerOptions) {
    this.#options = options;
    this.#warnings = new RateLimitedWarning(options.log);
  }

  async start(): Promise<void> {
    const { engines, config } = this.#options;
    const concurrency = Math.max(config.FLEET_CONCURRENCY, config.FLEET_SLOTS);
    this.#open(ANY_QUEUE, undefined, concurrency);
    for (const engine of engines) {
      this.#open(newQueue(engine.provider.kind), engine, 1);
      this.#open(newEngineQueue(engine.id), engine, 1);
      this.#open(engineQueue(engine.id), undefined, concurrency);
    }
    await Promise.all(this.#fetchers.map(async ({ worker }) => await worker.waitUntilReady()));
    await this.followSlots();
    for (const { worker } of this.#fetchers) this.#run(worker);
    for (const engine of engines) engine.runners.warm(() => this.#fit(engine));
  }

  /** True while every queue is being fetched from, or is left alone on purpose. */
  get isFetching(): boolean {
    return this.#fetchers.every(({ worker }) => worker.isRunning() || worker.isPaused());
  }

  /** Fits the fetching of seeds to the free slots of each engine. */
  async followSlots(): Promise<void> {
    for (const engine of this.#options.engines) {
      await engine.slots.refresh();
      this.#fit(engine);
    }
  }

  /** Takes nothing new; what runs goes on. */
  async drain(): Promise<void> {
    this.#isDraining = true;
    await Promise.all(this.#fetchers.map(async ({ worker }) => await worker.pause(true)));
  }

  /** Waits for the running processors. */
  async close(): Promise<void> {
    await Promise.all(this.#fetchers.map(async ({ worker }) => await worker.close()));
  }

  #open(queue: string, engine: Engine | undefined, concurrency: number): void {
    const { config, connection, keys } = this.#options;
    // Referenced before it is assigned: the processor runs only after `run()`.
    const process: Processor = async (job, token, signal) => {
      await this.#process(fetcher, job, token, signal);
    };
    if (process.length !== SIGNAL_ARITY)
      throw new Error(`the processor must declare ${SIGNAL_ARITY} plain parameters, or it gets no abort signal`);
    const worker = new Worker<JobData, void>(queue, process, {
      connection,
      prefix: keys.prefix,
      concurrency,
      autorun: false,
      skipVersionCheck: true,
      lockDuration: config.FLEET_LOCK_MS,
      stalledInterval: config.FLEET_STALLED_INTERVAL_MS,
      maxStalledCount: MAX_STALLED_COUNT,
      drainDelay: DRAIN_DELAY_S,
    });
    const fetcher: Fetcher = { worker, engine, seeding: 0, active: 0, waking: undefined };
    worker.on('error', (error) => this.#warnings.warn('queue trouble', { queue, reason: reasonOf(error) }));
    // Neither means that the command is lost: liveness is judged by the record, not by the library's lock.
    worker.on('lockRenewalFailed', () => this.#warnings.warn('job locks were not renewed', { queue }));
    worker.on('failed', (_job, error) =>
      this.#options.log.error({ queue, err: error }, 'a job failed, which is a fault of ours'),
    );
    this.#fetchers.push(fetcher);
  }

  #run(worker: Worker<JobData, void>): void {
    if (worker.isPaused()) return;
    worker
      .run()
      .catch((error: unknown) => this.#options.log.error({ queue: worker.name, err: error }, 'the fetch loop ended'));
  }

  async #process(
    fetcher: Fetcher,
    job: Job<JobData>,
    token: string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    if (signal === undefined || job.id === undefined) throw new Error('BullMQ gave no abort signal');
    const { s: key, c: commandId, l: replyTo } = job.data;
    const jobId = job.id;
    let isSeeding = fetcher.engine !== undefined;
    fetcher.active++;
    if (fetcher.engine !== undefined) {
      fetcher.seeding++;
      this.#fit(fetcher.engine);
    }
    const seeded = (): void => {
      if (isSeeding) fetcher.seeding--;
      isSeeding = false;
      if (fetcher.engine !== undefined) this.#fit(fetcher.engine);
    };
    try {
      const cancel = (reason: string): boolean => fetcher.worker.cancelJob(jobId, reason);
      const end = await this.#options.mailbox.process({
        at: { key, replyTo },
        commandId,
        jobId,
        kind: job.name,
        engine: fetcher.engine,
        signal,
        cancel,
        onSeeded: seeded,
      });
      if (end !== undefined) await this.#giveBack(job, token, end.backMs);
    } finally {
      fetcher.active--;
      seeded();
    }
  }

  /** If the move fails the lock is another's, and so is the job. */
  async #giveBack(job: Job<JobData>, token: string | undefined, ms: number): Promise<void> {
    try {
      await job.moveToDelayed(Date.now() + ms, token);
    } catch {
      return;
    }
    throw new DelayedError();
  }

  #fit(engine: Engine): void {
    if (this.#isDraining) return;
    const fetchers = this.#fetchers.filter((each) => each.engine === engine);
    const seeding = fetchers.reduce((sum, each) => sum + each.seeding, 0);
    const free = engine.runners.problem === undefined ? Math.max(0, engine.slots.free - seeding) : 0;
    for (const fetcher of fetchers) this.#fitOne(fetcher, free);
  }

  #fitOne(fetcher: Fetcher, free: number): void {
    const { worker } = fetcher;
    const room = fetcher.active + free;
    if (room === 0) {
      if (!worker.isPaused()) void worker.pause(true);
      return;
    }
    const isStuck = room > worker.concurrency && fetcher.active >= worker.concurrency;
    worker.concurrency = room;
    if (worker.isPaused()) void worker.resume();
    else if (isStuck) this.#wakeSoon(fetcher);
  }

  /**
   * BullMQ looks at a raised concurrency only when one of its jobs ends, or when it is resumed (6.7.0 `mainLoop`): free
   * slots would wait for the end of a long activation that went on from its seed. Not at once: where jobs end all the
   * time, a resume would only cost.
   */
  #wakeSoon(fetcher: Fetcher): void {
    if (fetcher.waking !== undefined) return;
    fetcher.waking = setTimeout(() => {
      fetcher.waking = undefined;
      if (fetcher.active < fetcher.worker.concurrency && !this.#isDraining) void this.#wake(fetcher.worker);
    }, WAKE_MS);
    fetcher.waking.unref();
  }

  async #wake(worker: Worker<JobData, void>): Promise<void> {
    await worker.pause(true);
    if (!this.#isDraining) await worker.resume();
  }
}
