import { setTimeout as sleep } from 'node:timers/promises';
import { FleetError, type ResultClass } from '@hermes-fleet/shared';
import type { FleetClient } from './client.ts';
import { LineWriter, type Recorded, type RolloutFiles, rolloutKey } from './rollout-files.ts';
import { type AttemptEnd, failureLine, resultLine, type RolloutAt } from './rollout-record.ts';
import { runAttempt, sweepStream } from './sweep-attempt.ts';
import { fleetSweepId, type Manifest, writeManifest } from './sweep-manifest.ts';
import { noCounts, type SweepState, sumOf } from './sweep-progress.ts';
import { checkSum, type SweepSummary } from './sweep-summary.ts';
import { planOf, type RowPlan, type Tasks } from './sweep-tasks.ts';

export interface SweepOptions {
  readonly client: FleetClient;
  readonly manifest: Manifest;
  readonly tasks: Tasks;
  readonly files: RolloutFiles;
  readonly recorded: Recorded;
  readonly concurrency: number;
  /** Attempts beyond the first, for results that say that another one may end better. */
  readonly retries: number;
  /** From the hand-in of an attempt to its last result; default: the session's own time limit, and a day of waiting. */
  readonly deadlineMs?: number | undefined;
  /** First pause before another attempt; doubled each time. Default 1 s. */
  readonly retryPauseMs?: number;
  /** How long results are waited for after a cancel. Default 30 s. */
  readonly cancelGraceMs?: number;
  /** Cancels the sweep: what runs is closed, and its results are still written. */
  readonly signal: AbortSignal;
}

const DAY_S = 86_400;
const DEFAULT_SESSION_TTL_S = 86_400;
const RETRY_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 30_000;
const CANCEL_GRACE_MS = 30_000;

/** Runs every rollout of a tasks file to its end, and writes each one down as it ends. Used once. */
export class Sweep {
  readonly #options: SweepOptions;
  readonly #counts = noCounts();
  readonly #codes: Record<string, number> = {};
  readonly #began = performance.now();
  readonly #hermesVersions: Set<string>;
  /** Aborted when nothing more is waited for: the grace after a cancel is over, or nothing can be written. */
  readonly #end = new AbortController();
  /** Rollouts that have no result yet, those of one row side by side. */
  readonly #left: readonly RolloutAt[];
  #manifest: Manifest;
  #written: Promise<void> = Promise.resolve();
  readonly #resumed: number;
  #running = 0;
  #attempts = 0;
  #retries = 0;
  #tokens = 0;
  #wasCancelled = false;

  constructor(options: SweepOptions) {
    this.#options = options;
    this.#manifest = options.manifest;
    this.#hermesVersions = new Set(options.manifest.hermes_versions);
    this.#left = this.#countDone();
    this.#resumed = sumOf(this.#counts);
  }

  get state(): SweepState {
    return {
      expected: this.#expected,
      counts: { ...this.#counts },
      resumed: this.#resumed,
      running: this.#running,
      retries: this.#retries,
      tokens: this.#tokens,
      elapsedMs: performance.now() - this.#began,
    };
  }

  get #expected(): number {
    return this.#options.tasks.rows.length * this.#manifest.options.repeats;
  }

  /** @throws FleetError `refused/config` when a file cannot be written, `infra/internal` when the classes do not add up */
  async run(): Promise<SweepSummary> {
    const { files, concurrency, signal, client } = this.#options;
    await using out = await LineWriter.open(files.out);
    await using failures = await LineWriter.open(files.failures);
    const sweepId = fleetSweepId(this.#manifest);
    const pending = this.#left.values();
    const drained = new AbortController();
    const draining = drain(client, sweepId, drained.signal);
    let cancelling: Promise<void> | undefined;
    const cancel = (): void => void (cancelling ??= this.#cancel(sweepId));
    if (signal.aborted) cancel();
    signal.addEventListener('abort', cancel, { once: true });
    try {
      const lane = async (): Promise<void> => {
        for (const at of pending) {
          if (signal.aborted) this.#count('cancelled', 'by_caller');
          else await this.#rollout(at, sweepId, out, failures);
        }
      };
      const lanes = await Promise.allSettled(Array.from({ length: concurrency }, async () => await this.#orEnd(lane)));
      await cancelling;
      for (const ended of lanes) if (ended.status === 'rejected') throw ended.reason;
    } finally {
      signal.removeEventListener('abort', cancel);
      drained.abort();
      await draining;
    }
    if (this.#wasCancelled && !signal.aborted) await this.#nextRound();
    checkSum(this.#expected, this.#counts);
    return this.#summary();
  }

  /** Counts what earlier processes have done. @returns what is left */
  #countDone(): RolloutAt[] {
    const left: RolloutAt[] = [];
    for (const row of this.#options.tasks.rows) {
      for (let rollout = 0; rollout < this.#manifest.options.repeats; rollout++) {
        const done = this.#options.recorded.done.get(rolloutKey(row.index, rollout));
        if (done === undefined) left.push({ row, rollout });
        else {
          if (done.rowDigest !== row.digest)
            throw new FleetError(
              'refused/invalid',
              `${this.#options.files.out} has a result of another row ${row.index}`,
            );
          this.#counts[done.class]++;
          this.#tokens += done.tokens;
        }
      }
    }
    return left;
  }

  async #orEnd(lane: () => Promise<void>): Promise<void> {
    try {
      await lane();
    } catch (error) {
      this.#end.abort(error);
      throw error;
    }
  }

  async #rollout(at: RolloutAt, sweepId: string, out: LineWriter, failures: LineWriter): Promise<void> {
    const { recorded, retries, signal, manifest } = this.#options;
    const plan = planOf(at.row, manifest.config);
    const first = recorded.nextAttempt.get(rolloutKey(at.row.index, at.rollout)) ?? 0;
    this.#running++;
    try {
      for (let attempt = first; ; attempt++) {
        const end = await this.#attempt(at, plan, sweepId, attempt);
        // Aborted without a cancel: a file cannot be written. Whatever this is, a resumed sweep finds it again.
        if (this.#end.signal.aborted && !signal.aborted) return;
        if (end.rewardValid) {
          await out.write(resultLine(at, end, manifest.options.observations));
          return this.#count(end.class, end.code);
        }
        const isLast = !end.retryable || attempt - first >= retries || signal.aborted;
        await failures.write(failureLine(at, end, isLast));
        if (end.class === 'cancelled') this.#wasCancelled = true;
        if (isLast) return this.#count(end.class, end.code);
        this.#retries++;
        await this.#pause(attempt - first);
        if (signal.aborted) return this.#count('cancelled', 'by_caller');
      }
    } finally {
      this.#running--;
    }
  }

  async #attempt(at: RolloutAt, plan: RowPlan, sweepId: string, attempt: number): Promise<AttemptEnd> {
    const { client, deadlineMs } = this.#options;
    this.#attempts++;
    const end = await runAttempt({
      client,
      plan,
      sweepId,
      runKey: this.#manifest.run_key,
      task: at.row.index,
      rollout: at.rollout,
      attempt,
      deadlineMs: deadlineMs ?? ((plan.seed.timeouts?.session_ttl_s ?? DEFAULT_SESSION_TTL_S) + DAY_S) * 1000,
      signal: this.#end.signal,
    });
    this.#tokens += end.activation?.body?.usage.total.total_tokens ?? 0;
    const version = end.activation?.body?.hermes_version;
    if (version != null && !this.#hermesVersions.has(version)) {
      this.#hermesVersions.add(version);
      await this.#rewrite({ hermes_versions: [...this.#hermesVersions] });
    }
    return end;
  }

  #count(resultClass: ResultClass, code: string): void {
    this.#counts[resultClass]++;
    const name = `${resultClass}/${code}`;
    this.#codes[name] = (this.#codes[name] ?? 0) + 1;
  }

  async #pause(tries: number): Promise<void> {
    const pause = Math.min(LONGEST_PAUSE_MS, (this.#options.retryPauseMs ?? RETRY_PAUSE_MS) * 2 ** tries);
    const signal = AbortSignal.any([this.#options.signal, this.#end.signal]);
    await sleep(pause * (0.5 + Math.random() / 2), undefined, { signal }).catch(() => undefined);
  }

  async #cancel(sweepId: string): Promise<void> {
    const grace = setTimeout(() => this.#end.abort(), this.#options.cancelGraceMs ?? CANCEL_GRACE_MS);
    this.#end.signal.addEventListener('abort', () => clearTimeout(grace), { once: true });
    grace.unref();
    await this.#nextRound().catch(() => undefined);
    // With Redis away nothing can be cancelled; the sessions' own time limits end them.
    await this.#options.client.cancel({ sweepId }).catch(() => undefined);
  }

  /** The fleet refuses sessions of a cancelled sweep for good: what is resumed is one of a new name. */
  async #nextRound(): Promise<void> {
    await this.#rewrite({ round: this.#options.manifest.round + 1 });
  }

  async #rewrite(change: Partial<Manifest>): Promise<void> {
    const manifest = { ...this.#manifest, ...change };
    this.#manifest = manifest;
    this.#written = this.#written.then(async () => await writeManifest(this.#options.files.manifest, manifest));
    await this.#written;
  }

  #summary(): SweepSummary {
    return {
      sweep_id: this.#manifest.sweep_id,
      expected: this.#expected,
      counts: this.#counts,
      codes: this.#codes,
      refused: this.#options.tasks.errors.length,
      resumed: this.#resumed,
      attempts: this.#attempts,
      retries: this.#retries,
      tokens: this.#tokens,
      elapsed_ms: Math.round(performance.now() - this.#began),
      ...this.#options.files,
    };
  }
}

/** Acknowledges what comes, so that the stream is trimmed and never full; what counts is read from the sessions' records. */
async function drain(client: FleetClient, sweepId: string, signal: AbortSignal): Promise<void> {
  try {
    for await (const entry of client.results({ group: 'sweep', replyTo: sweepStream(sweepId), signal }))
      await entry.ack();
  } catch {
    // Without it the stream fills, and says `retry_later` at its limit.
  }
}
