import { setTimeout as sleep } from 'node:timers/promises';
import { reasonOfAbort } from '../cancellation.ts';

export interface BackoffTimes {
  readonly firstMs: number;
  /** Of pauses that are our own. */
  readonly longestMs: number;
  /** Of what a server may ask for. */
  readonly longestAskedMs: number;
}

/**
 * Pauses between tries, shared by all calls of this process that a Model Server counts together: while one is told to
 * wait, the others do not storm it.
 */
export class Backoff {
  readonly #notBefore = new Map<string, number>();
  readonly #times: BackoffTimes;

  constructor(times: BackoffTimes) {
    this.#times = times;
  }

  /** How long the endpoint is to be left alone from now, in milliseconds; 0 when it may be asked. */
  left(endpoint: string): number {
    return Math.max(0, (this.#notBefore.get(endpoint) ?? 0) - performance.now());
  }

  /** Waits while the endpoint is being left alone. @throws FleetError the signal's reason */
  async ready(endpoint: string, signal: AbortSignal): Promise<void> {
    const left = this.left(endpoint);
    if (left > 0) await pause(left * (1 + Math.random() / 4), signal);
    else this.#notBefore.delete(endpoint);
  }

  /**
   * Waits after a failed try: as long as the server says, else ever longer, spread by jitter.
   *
   * @returns false, at once, when the server asks for more patience than there is
   * @throws FleetError the signal's reason
   */
  async wait(endpoint: string, tries: number, retryAfterMs: number | undefined, signal: AbortSignal): Promise<boolean> {
    const { firstMs, longestMs, longestAskedMs } = this.#times;
    if (retryAfterMs === undefined) {
      await pause(Math.min(longestMs, firstMs * 2 ** (tries - 1)) * (0.5 + Math.random()), signal);
      return true;
    }
    if (retryAfterMs > longestAskedMs) return false;
    this.#notBefore.set(endpoint, performance.now() + retryAfterMs);
    await pause(retryAfterMs + Math.random() * firstMs, signal);
    return true;
  }
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(ms, undefined, { signal });
  } catch {
    throw reasonOfAbort(signal);
  }
}
