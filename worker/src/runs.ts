import { type Address, FleetError, type Scripts } from '@hermes-fleet/shared';
import { type Cancellation, cancelledError } from './cancellation.ts';
import type { Lease } from './lease.ts';

/** One run of a command in this process. Kept by nonce, never by job id: the same job may be delivered twice. */
export interface Run {
  readonly nonce: string;
  readonly at: Address;
  readonly commandId: string;
  readonly number: string;
  readonly kind: string;
  readonly cancellation: Cancellation;
  /** Fires the job's own abort signal; false where the run has no job of its own. */
  readonly cancelJob: (code: string) => boolean;
  /** '' until it has begun. */
  fence: string;
  lease: Lease | undefined;
  /** Once finish was sent, its answer decides and the heartbeat's is not acted on. */
  isFinishing: boolean;
}

/** More than can arrive between a finish that takes the next command and its answer. */
const RECENT_MESSAGES = 10_000;

const messageOf = (run: Run): string => `${run.at.key} ${run.commandId}`;

/** The runs of this process: their heartbeats, and the way of a cancel message to each of them. */
export class Runs {
  readonly #byNonce = new Map<string, Run>();
  readonly #beating = new Set<string>();
  /** Cancel messages in order of arrival, the last ones. */
  readonly #recent = new Set<string>();
  readonly #scripts: Scripts;
  readonly #renewMs: number;
  #isDraining = false;
  #isOver = false;

  constructor(scripts: Scripts, renewMs: number) {
    this.#scripts = scripts;
    this.#renewMs = renewMs;
  }

  get isDraining(): boolean {
    return this.#isDraining;
  }

  get size(): number {
    return this.#byNonce.size;
  }

  /** Lease members of the seeds that are running here. */
  get leases(): ReadonlySet<string> {
    return new Set([...this.#byNonce.values()].flatMap((run) => (run.lease === undefined ? [] : [run.lease.member])));
  }

  /** One that comes after the drain time is given back at once. */
  add(run: Run): void {
    this.#byNonce.set(run.nonce, run);
    if (this.#isOver) this.#giveBack(run);
  }

  remove(run: Run): void {
    this.#byNonce.delete(run.nonce);
  }

  /** Runs take no next command from here on. */
  drain(): void {
    this.#isDraining = true;
  }

  /** Gives every running command back. */
  abortAll(): void {
    this.#isOver = true;
    for (const run of this.#byNonce.values()) this.#giveBack(run);
  }

  #giveBack(run: Run): void {
    run.cancellation.abort(new FleetError('internal/drain', 'the worker is shutting down'));
  }

  /**
   * Beats each `renewMs` until disposed; at once when a cancel message came before the command was known to be ours: it was
   * sent after the script had begun it, and before the script's answer was here.
   */
  heartbeat(run: Run): Disposable {
    if (this.#recent.has(messageOf(run))) void this.#beat(run, true);
    const timer = setInterval(() => void this.#beat(run), this.#renewMs);
    return { [Symbol.dispose]: () => clearInterval(timer) };
  }

  /** After a reconnect: every living owner must be heard before its grace is over. */
  beatAll(): void {
    for (const run of this.#byNonce.values()) void this.#beat(run);
  }

  /** A message `<session key> <command id>` says that a tombstone was set; the record tells which. */
  onCancelMessage(message: string): void {
    this.#remember(message);
    for (const run of this.#byNonce.values()) if (message === messageOf(run)) void this.#beat(run, true);
  }

  #remember(message: string): void {
    this.#recent.add(message);
    const [oldest] = this.#recent;
    if (this.#recent.size > RECENT_MESSAGES && oldest !== undefined) this.#recent.delete(oldest);
  }

  async #beat(run: Run, isUrgent = false): Promise<void> {
    // While Redis is away calls wait; one outstanding per run is enough.
    if (run.fence === '' || (this.#beating.has(run.nonce) && !isUrgent)) return;
    this.#beating.add(run.nonce);
    try {
      const answer = await this.#scripts.renew(run.at, run.commandId, run.fence, run.lease);
      if (run.isFinishing || answer.status === 'ok') return;
      if (answer.status === 'fenced')
        run.cancellation.abort(new FleetError('internal/fenced', 'another run owns this command'));
      else if (answer.status === 'lost')
        run.cancellation.abort(new FleetError('internal/lease_lost', 'the lease of the sandbox was reaped'));
      else if (answer.status === 'cancelled' && !run.cancelJob(answer.code))
        run.cancellation.abort(cancelledError(answer.code));
    } catch {
      // Not heard: the next beat, or the one after the reconnect, is. Silence alone never aborts a run.
    } finally {
      this.#beating.delete(run.nonce);
    }
  }
}
