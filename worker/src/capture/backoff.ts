import { setTimeout as sleep } from 'node:timers/promises';
import { reasonOfAbort } from '../cancellation.ts';

/**
 * Pauses between tries, shared by all calls of this process to one Model Server: while one is told to wait, the others do
 * not storm it.
 */
export class Backoff {
  readonly #notBefore = new Map<string, number>();
  readonly #firstMs: number;
  readonly #longestMs: number;

  constructor(firstMs: number, longestMs: number) {
    this.#firstMs = firstMs;
    this.#longestMs = longestMs;
  }

  /** Waits while the endpoint is being left alone. @throws FleetError the signal's reason */
  async ready(endpoint: string, signal: AbortSignal): Promise<void> {
    const left = (this.#notBefore.get(endpoint) ?? 0) - performance.now();
    if (left > 0) await pause(left * (1 + Math.random() / 4), signal);
  }

  /** Waits after a failed try: as long as the server says, else ever longer, spread by jitter. */
  async wait(endpoint: string, tries: number, retryAfterMs: number | undefined, signal: AbortSignal): Promise<void> {
    const grown = Math.min(this.#longestMs, this.#firstMs * 2 ** (tries - 1));
    const ms =
      retryAfterMs === undefined ? grown * (0.5 + Math.random()) : retryAfterMs + Math.random() * this.#firstMs;
    if (retryAfterMs !== undefined) this.#notBefore.set(endpoint, performance.now() + retryAfterMs);
    await pause(ms, signal);
  }
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(ms, undefined, { signal });
  } catch {
    throw reasonOfAbort(signal);
  }
}
