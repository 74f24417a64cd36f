import { Queue } from 'bullmq';
import type { Redis } from 'ioredis';
import type { Keys } from './keys.ts';

/** What a script tells its caller to add to BullMQ. Adding it twice is harmless: the job id is the same. */
export interface Job {
  readonly queue: string;
  readonly jobId: string;
  readonly name: string;
  readonly commandId: string;
}

/** Data of a job. No state of ours is ever read from it but these names. */
export interface JobData {
  /** Session key. */
  readonly s: string;
  /** Command id. */
  readonly c: string;
  /** Name of the results stream. */
  readonly l: string;
}

/** Adds dispatched commands to their queues. One per process; queues are opened when first needed. */
export class Dispatcher {
  readonly #queues = new Map<string, Queue<JobData>>();
  readonly #keys: Keys;
  readonly #redis: Redis;

  constructor(keys: Keys, redis: Redis) {
    this.#keys = keys;
    this.#redis = redis;
  }

  /** Kept jobs would block their id for ever, so none is kept. A close goes to the front: it frees a slot. */
  async add(job: Job | undefined, sessionKey: string, replyTo: string): Promise<void> {
    if (job === undefined) return;
    const data = { s: sessionKey, c: job.commandId, l: replyTo };
    const options = {
      jobId: job.jobId,
      removeOnComplete: true,
      removeOnFail: true,
      attempts: 1,
      ...(job.name === 'close' ? { lifo: true } : {}),
    };
    await this.#queue(job.queue).add(job.name, data, options);
  }

  async close(): Promise<void> {
    await Promise.all([...this.#queues.values()].map(async (queue) => await queue.close()));
  }

  #queue(name: string): Queue<JobData> {
    let queue = this.#queues.get(name);
    if (queue === undefined) {
      queue = new Queue<JobData>(name, { connection: this.#redis, prefix: this.#keys.prefix, skipVersionCheck: true });
      // The connection is ours and has its own listener; BullMQ repeats its errors here.
      queue.on('error', () => undefined);
      this.#queues.set(name, queue);
    }
    return queue;
  }
}
