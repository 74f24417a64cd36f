import { setTimeout as sleep } from 'node:timers/promises';
import { FleetError } from '@hermes-fleet/shared';
import type { Redis } from 'ioredis';

/** How often a waiter looks again although nothing woke it: a live event alone is never relied upon. */
const RECHECK_MS = 10_000;
const RETRY_MS = 500;
const READ_COUNT = 1000;

/**
 * Wakes the waiters of one results stream, by one blocking read for all of them. It only wakes: what a waiter returns it
 * reads from the session's record.
 */
export class StreamWatch {
  readonly #redis: Redis;
  readonly #stream: string;
  readonly #waiters = new Map<string, Set<() => void>>();
  #started: Promise<void> | undefined;
  readonly #closing = new AbortController();

  /** @param redis a connection of its own: it blocks */
  constructor(redis: Redis, stream: string) {
    this.#redis = redis;
    this.#stream = stream;
  }

  /**
   * Resolves with what `look` finds, whenever it was there: before the call, or after any entry of that command.
   *
   * @throws the signal's reason, which leaves the command as it is; FleetError `refused/redis` when the client was closed
   */
  async until<T>(
    sessionId: string,
    commandId: string,
    look: () => Promise<T | undefined>,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    // The reader's place in the stream is fixed before the first look: what comes later wakes us.
    await this.#unlessOver(
      (this.#started ??= this.#start().catch((error: unknown) => {
        this.#started = undefined;
        throw error;
      })),
      signal,
    );
    const key = `${sessionId}\0${commandId}`;
    for (;;) {
      const woken = this.#wake(key);
      try {
        const found = await this.#unlessOver(look(), signal);
        if (found !== undefined) return found;
        await this.#unlessOver(woken.promise, signal);
      } finally {
        woken.stop();
      }
    }
  }

  /** While Redis is away, what is asked of it waits: nobody's patience may depend on that. */
  async #unlessOver<T>(work: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    work.catch(() => undefined);
    const signals = signal === undefined ? [this.#closing.signal] : [this.#closing.signal, signal];
    const over = AbortSignal.any(signals);
    over.throwIfAborted();
    let stop: () => void = () => undefined;
    const aborted = new Promise<never>((_, reject) => {
      stop = () => reject(over.reason as Error);
      over.addEventListener('abort', stop, { once: true });
    });
    try {
      return await Promise.race([work, aborted]);
    } finally {
      over.removeEventListener('abort', stop);
    }
  }

  close(): void {
    this.#closing.abort(new FleetError('refused/redis', 'the client was closed'));
    this.#redis.disconnect();
  }

  #wake(key: string): { readonly promise: Promise<void>; stop(): void } {
    let wake: () => void = () => undefined;
    const promise = new Promise<void>((resolve) => (wake = resolve));
    const timer = setTimeout(wake, RECHECK_MS);
    const waiters = this.#waiters.get(key) ?? new Set();
    waiters.add(wake);
    this.#waiters.set(key, waiters);
    return {
      promise,
      stop: () => {
        clearTimeout(timer);
        waiters.delete(wake);
        if (waiters.size === 0) this.#waiters.delete(key);
      },
    };
  }

  async #start(): Promise<void> {
    const [last] = await this.#redis.xrevrange(this.#stream, '+', '-', 'COUNT', 1);
    void this.#read(last?.[0] ?? '0-0');
  }

  async #read(from: string): Promise<void> {
    let cursor = from;
    while (!this.#closing.signal.aborted) {
      try {
        const reply = await this.#redis.xread(
          'COUNT',
          READ_COUNT,
          'BLOCK',
          RECHECK_MS,
          'STREAMS',
          this.#stream,
          cursor,
        );
        for (const [id, fields] of reply?.[0]?.[1] ?? []) {
          cursor = id;
          this.#notify(fields);
        }
      } catch {
        // Away, or loading: the waiters look again by themselves, and so do we.
        await sleep(RETRY_MS);
      }
    }
  }

  #notify(fields: readonly string[]): void {
    const at = (name: string): string => fields[fields.indexOf(name) + 1] ?? '';
    for (const wake of this.#waiters.get(`${at('s')}\0${at('c')}`) ?? []) wake();
  }
}
