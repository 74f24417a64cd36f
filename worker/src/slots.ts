import type { Scripts } from '@hermes-fleet/shared';

/**
 * Free sandbox slots of one engine. Redis counts the leases of all workers, so that the sandboxes of dead processes
 * count too; here is the last count and what this process has begun since.
 */
export class Slots {
  readonly engine: string;
  readonly limit: number;
  readonly #scripts: Scripts;
  readonly #starts: number;
  #open = 0;

  constructor(scripts: Scripts, engine: string, limit: number, starts: number) {
    this.#scripts = scripts;
    this.engine = engine;
    this.limit = limit;
    this.#starts = starts;
  }

  /** Counts the open sandboxes of the engine again. */
  async refresh(): Promise<void> {
    this.#open = await this.#scripts.redis.zcard(this.#scripts.keys.leases(this.engine));
  }

  /** How many seeds this process may take now, beyond those that it is running. */
  get free(): number {
    return Math.max(0, Math.min(this.limit - this.#open, this.#starts));
  }
}
