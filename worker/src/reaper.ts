import { reasonOf, type Scripts } from '@hermes-fleet/shared';
import type { Config } from './config.ts';
import type { Engine } from './engine.ts';
import { type Log, RateLimitedWarning } from './log.ts';
import type { ListedSandbox } from './sandbox/provider.ts';

export interface ReaperOptions {
  readonly scripts: Scripts;
  readonly engine: Engine;
  readonly config: Config;
  readonly log: Log;
  /** Leases of the seeds that this process is running: never touched. */
  readonly held: () => ReadonlySet<string>;
  /** False for a while after each reconnect. */
  readonly mayJudge: () => boolean;
}

/**
 * Removes sandboxes of this fleet that no session holds any more, on one engine. It goes by lease and label, never by
 * name, prefix or age; a box without a lease must be seen twice, a grace apart. With Redis away only what is past its
 * hard expiry goes.
 */
export class Reaper {
  readonly #options: ReaperOptions;
  readonly #warnings: RateLimitedWarning;
  /** Boxes without a lease, by name: when they were first seen so. */
  readonly #suspects = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;
  #isRunning = false;

  constructor(options: ReaperOptions) {
    this.#options = options;
    this.#warnings = new RateLimitedWarning(options.log);
  }

  start(): void {
    void this.round();
    this.#timer = setInterval(() => void this.round(), this.#options.config.FLEET_REAP_MS);
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  async round(): Promise<void> {
    if (this.#isRunning) return;
    this.#isRunning = true;
    try {
      await this.#reap();
    } catch (error) {
      this.#warnings.warn('reaping failed', { reason: reasonOf(error) });
    } finally {
      this.#isRunning = false;
    }
  }

  async #reap(): Promise<void> {
    const { engine, scripts, mayJudge } = this.#options;
    const boxes = await engine.provider.list();
    for (const box of boxes) if (box.expiresAtS * 1000 < Date.now()) await this.#remove(box, 'hard expiry');
    // Asking a Redis that is away would wait until it is back, and then judge by what was true before.
    if (scripts.redis.status !== 'ready' || !mayJudge()) return;
    const names = new Set(boxes.map(({ name }) => name));
    for (const name of this.#suspects.keys()) if (!names.has(name)) this.#suspects.delete(name);
    for (const box of boxes) await this.#judge(box);
    for (const member of await scripts.redis.zrange(scripts.keys.leases(engine.id), '0', '-1'))
      if (!names.has(member)) await this.#settleLease(member);
  }

  async #judge(box: ListedSandbox): Promise<void> {
    const { scripts, engine, config, held, mayJudge } = this.#options;
    if (held().has(box.name) || !mayJudge()) return;
    const answer = await scripts.reap(engine.id, box.name, config.FLEET_TAKEOVER_GRACE_MS, 'claim');
    if (answer === 'claimed') {
      await this.#remove(box, 'its lease has lapsed');
      await scripts.reap(engine.id, box.name, 0, 'done');
    } else if (answer === 'free') {
      const seen = this.#suspects.get(box.name);
      if (seen === undefined) this.#suspects.set(box.name, performance.now());
      else if (performance.now() - seen >= config.FLEET_REAP_GRACE_MS) await this.#remove(box, 'no session holds it');
    } else this.#suspects.delete(box.name);
  }

  /** A lapsed lease whose sandbox was never made, or is gone already, still counts against the slots. */
  async #settleLease(member: string): Promise<void> {
    const { scripts, engine, config, held, log } = this.#options;
    if (held().has(member)) return;
    if ((await scripts.reap(engine.id, member, config.FLEET_TAKEOVER_GRACE_MS, 'claim')) !== 'claimed') return;
    await scripts.reap(engine.id, member, 0, 'done');
    log.info({ lease: member }, 'lease without a sandbox dropped');
  }

  async #remove(box: ListedSandbox, why: string): Promise<void> {
    await box.remove();
    this.#suspects.delete(box.name);
    this.#options.log.warn({ sandbox: box.name, why }, 'sandbox reaped');
  }
}
