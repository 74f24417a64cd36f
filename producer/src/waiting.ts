import { setTimeout as sleep } from 'node:timers/promises';
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
  #isClosed = false;

  /** @param redis a connection of its own: it blocks */
  constructor(redis: Redis, stream: string) {
    this.#redis = redis;
    this.#stream = stream;
  }

  /**
   * Resolves with what `look` finds, whenever it was there: before the call, or after any entry of that command.
   *
   * @throws the signal's reason, which leaves the command as it is
   */
  async until<T>(
    sessionId: string,
    commandId: string,
    look: () => Promise<T | undefined>,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    // The reader's place in the stream is fixed before the first look: what comes later wakes us.
    await (this.#started ??= this.#start().catch((error: unknown) => {
      this.#started = undefined;
      throw error;
    }));
    const key = `${sessionId}\0${commandId}`;
    for (;;) {
      signal?.throwIfAborted();
      const woken = this.#wake(key, signal);
      try {
        const found = await look();
        if (found !== undefined) return found;
        await woken.promise;
      } finally {
        woken.stop();
      }
    }
  }

  close(): void {
    this.#isClosed = true;
    this.#redis.disconnect();
  }

  #wake(key: string, signal: AbortSignal | undefined): { readonly promise: Promise<void>; stop(): void } {
    let wake: () => void = () => undefined;
    const promise = new Promise<void>((resolve) => (wake = resolve));
    const timer = setTimeout(wake, RECHECK_MS);
    const waiters = this.#waiters.get(key) ?? new Set();
    waiters.add(wake);
    this.#waiters.set(key, waiters);
    signal?.addEventListener('abort', wake, { once: true });
    return {
      promise,
      stop: () => {
        clearTimeout(timer);
        waiters.delete(wake);
        if (waiters.size === 0) this.#waiters.delete(key);
        signal?.removeEventListener('abort', wake);
      },
    };
  }

  async #start(): Promise<void> {
    const [last] = await this.#redis.xrevrange(this.#stream, '+', '-', 'COUNT', 1);
    void this.#read(last?.[0] ?? '0-0');
  }

  async #read(from: string): Promise<void> {
    let cursor = from;
    while (!this.#isClosed) {
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
