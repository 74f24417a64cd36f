import { type Dispatcher, reasonOf, type Scripts } from '@hermes-fleet/shared';
import type { Config } from './config.ts';
import type { Engine } from './engine.ts';
import { type Log, RateLimitedWarning } from './log.ts';

const DUE_LIMIT = 100;
const CLAIM_MS = 10_000;
const TRIM_LIMIT = 1_000;

export interface MaintenanceOptions {
  readonly scripts: Scripts;
  readonly dispatcher: Dispatcher;
  readonly engines: readonly Engine[];
  readonly config: Config;
  readonly log: Log;
  /** Called with each round, to see slots that other workers freed. */
  readonly onRound: () => Promise<void>;
}

/**
 * The only polling of the fleet; any worker may do it, and several at once do no harm. Renews the engines' leases, hands
 * out lost dispatches and commands of silent owners, expires sessions, settles lapsed engines, trims read results.
 */
export class Maintenance {
  readonly #options: MaintenanceOptions;
  readonly #warnings: RateLimitedWarning;
  readonly #timers: NodeJS.Timeout[] = [];
  readonly #renewing = new Set<string>();
  #judgeFrom = 0;
  #lastRound = performance.now();
  #lastSuccess = performance.now();
  #isRunning = false;

  constructor(options: MaintenanceOptions) {
    this.#options = options;
    this.#warnings = new RateLimitedWarning(options.log);
    this.holdJudgement();
  }

  /**
   * After a (re)connect, and after this process was frozen itself, all leases look lapsed: nobody judges an engine or a
   * lease until their owners had time to renew.
   */
  holdJudgement(): void {
    const { FLEET_LEASE_MS, FLEET_TAKEOVER_GRACE_MS } = this.#options.config;
    this.#judgeFrom = performance.now() + FLEET_LEASE_MS + FLEET_TAKEOVER_GRACE_MS;
  }

  /** Undefined while rounds succeed; for readiness. */
  get problem(): string | undefined {
    const silent = performance.now() - this.#lastSuccess;
    return silent < 3 * this.#options.config.FLEET_DUE_MS + 5_000
      ? undefined
      : `no round has succeeded for ${Math.round(silent / 1000)} s`;
  }

  get mayJudge(): boolean {
    return performance.now() >= this.#judgeFrom;
  }

  start(): void {
    const { config } = this.#options;
    void this.#round();
    this.#timers.push(
      setInterval(() => void this.#round(), config.FLEET_DUE_MS),
      setInterval(() => void this.#trim(), config.FLEET_TRIM_MS),
    );
  }

  stop(): void {
    for (const timer of this.#timers) clearInterval(timer);
  }

  async #round(): Promise<void> {
    const { config, scripts, engines, onRound } = this.#options;
    const now = performance.now();
    if (now - this.#lastRound > config.FLEET_LEASE_MS) this.holdJudgement();
    this.#lastRound = now;
    // Not behind the ticks of a slow round: an engine whose workers are only busy must not look lost.
    for (const engine of engines) void this.#renew(engine);
    // While Redis is away calls wait; a second round would only pile up behind the first.
    if (this.#isRunning) return;
    this.#isRunning = true;
    try {
      // Asked for together, so that ioredis sends them in one write: an idle worker stays below one round trip a second.
      const [due] = await Promise.all([scripts.due(DUE_LIMIT, CLAIM_MS, config.FLEET_TAKEOVER_GRACE_MS), onRound()]);
      this.#lastSuccess = performance.now();
      for (const key of due.sessions) await this.#tickAlone(key);
      if (!this.mayJudge) return;
      for (const engine of due.lapsedEngines) await this.#settle(engine);
    } catch (error) {
      this.#warnings.warn('maintenance round failed', { reason: reasonOf(error) });
    } finally {
      this.#isRunning = false;
    }
  }

  /** One outstanding call per engine: while Redis is away they would pile up. */
  async #renew(engine: Engine): Promise<void> {
    if (this.#renewing.has(engine.id)) return;
    this.#renewing.add(engine.id);
    try {
      await this.#options.scripts.renewEngine(engine.id, this.#options.config.FLEET_LEASE_MS);
    } catch (error) {
      this.#warnings.warn('renewing the engine failed', { reason: reasonOf(error) });
    } finally {
      this.#renewing.delete(engine.id);
    }
  }

  /** One session that cannot be looked after must not keep those behind it waiting, round after round. */
  async #tickAlone(key: string): Promise<void> {
    try {
      await this.#tick(key);
    } catch (error) {
      this.#warnings.warn('looking after a session failed', { session_key: key, reason: reasonOf(error) });
    }
  }

  async #tick(key: string): Promise<void> {
    const { scripts, dispatcher, config } = this.#options;
    for (let moved = true; moved;) {
      const [engine, replyTo] = await scripts.redis.hmget(scripts.keys.record(key), 'en', 'rt');
      const at = { key, replyTo: replyTo ?? 'default' };
      const answer = await scripts.tick(at, engine ?? '', this.mayJudge ? config.FLEET_TAKEOVER_GRACE_MS : undefined);
      moved = answer.status === 'moved';
      await dispatcher.add(answer.job, key, at.replyTo);
    }
  }

  /** Commands of a lapsed engine's sessions end `infra/engine_lost`; once none is bound, the engine is forgotten. */
  async #settle(engine: string): Promise<void> {
    const { scripts, log } = this.#options;
    const bound = await scripts.redis.smembers(scripts.keys.bound(engine));
    if (bound.length > 0) log.warn({ engine, sessions: bound.length }, 'engine lost');
    for (const key of bound) await this.#tickAlone(key);
    const leases = await scripts.redis.zcard(scripts.keys.leases(engine));
    if (bound.length === 0 && leases === 0) await scripts.redis.zrem(scripts.keys.engines, engine);
  }

  async #trim(): Promise<void> {
    const { scripts, config, log } = this.#options;
    try {
      for (const replyTo of await scripts.redis.zrange(scripts.keys.streams, '0', '-1')) {
        const trimmed = await scripts.trim(replyTo, TRIM_LIMIT, config.FLEET_RESULTS_TTL_MS, config.FLEET_GROUP_TTL_MS);
        for (const group of trimmed.groups)
          log.warn({ reply_to: replyTo, group }, 'consumer group dropped: nobody has read for its time to live');
        for (const blob of trimmed.blobs) await scripts.redis.pexpire(blob, config.FLEET_RECEIPT_MS);
      }
    } catch (error) {
      this.#warnings.warn('trimming failed', { reason: reasonOf(error) });
    }
  }
}
