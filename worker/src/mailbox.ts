import { randomBytes } from 'node:crypto';
import {
  type Address,
  type CommandView,
  type Dispatcher,
  FleetError,
  type Job,
  patiently,
  reasonOf,
  RESULT_CLASSES,
  type Scripts,
} from '@hermes-fleet/shared';
import { Cancellation, cancelledError, onAborted } from './cancellation.ts';
import type { Command, Outcome } from './command.ts';
import type { Config } from './config.ts';
import type { Engine } from './engine.ts';
import { type Finished, Finisher } from './finish.ts';
import { dropLease, takeLease } from './lease.ts';
import type { Log } from './log.ts';
import type { Run, Runs } from './runs.ts';

/** A job as the contract sees it; nothing of it is BullMQ's. */
export interface MailboxJob {
  readonly at: Address;
  readonly commandId: string;
  readonly jobId: string;
  readonly kind: string;
  /** Engine for a seed of this queue; undefined on the queues of open sessions. */
  readonly engine: Engine | undefined;
  readonly signal: AbortSignal;
  /** Fires the signal from within this process; false where BullMQ does not track the job. */
  readonly cancel: (reason: string) => boolean;
  /** Called when a run goes on to a command that needs no slot. */
  readonly onSeeded: () => void;
}

/** `back`: give the job back for that long. */
export type JobEnd = { readonly backMs: number } | undefined;

export type Execute = (command: Command) => Promise<Outcome>;

const FULL_RETRY_MS = 200;
const BACK_MS = 200;

/** Unique to this process; what follows it is counted: entropy for each would be a system call for each. */
const NONCE_PREFIX = randomBytes(6).toString('hex');
let nonces = 0;
const newNonce = (): string => `${NONCE_PREFIX}${(nonces++).toString(36)}`;
const numberOf = (jobId: string): string => jobId.slice(jobId.indexOf('.') + 1);

/**
 * The worker's side of the session contract (`protocol.md` §6): admit, begin, heartbeat, execute, finish, and the next
 * command of the session in the same call. The order of the steps is part of the contract.
 */
export class Mailbox {
  readonly #scripts: Scripts;
  readonly #dispatcher: Dispatcher;
  readonly #config: Config;
  readonly #runs: Runs;
  readonly #execute: Execute;
  readonly #finisher: Finisher;
  readonly #log: Log;

  constructor(scripts: Scripts, dispatcher: Dispatcher, runs: Runs, config: Config, execute: Execute, log: Log) {
    this.#scripts = scripts;
    this.#dispatcher = dispatcher;
    this.#runs = runs;
    this.#config = config;
    this.#execute = execute;
    this.#finisher = new Finisher(scripts, config);
    this.#log = log;
  }

  async process(job: MailboxJob): Promise<JobEnd> {
    using cancellation = new Cancellation();
    const run = this.#open(job, cancellation);
    try {
      if (job.engine !== undefined) {
        const lease = await takeLease(
          this.#scripts,
          job.engine,
          `${job.at.key}.${run.nonce}`,
          this.#config.FLEET_LEASE_MS,
        );
        if (typeof lease === 'string') return { backMs: FULL_RETRY_MS };
        run.lease = lease;
      }
      const begun = await this.#scripts.begin(job.at, job.commandId, run.nonce, this.#maxBegins(job.kind));
      if (begun.status !== 'begun') {
        if (run.lease !== undefined) await dropLease(this.#scripts, run.lease);
        if (begun.status === 'suspect') return { backMs: begun.waitMs };
        if (begun.status === 'done') await this.#add(begun.job, job.at);
        return undefined;
      }
      return await this.#turns(job, run, begun.view);
    } finally {
      this.#runs.remove(run);
    }
  }

  /** One turn per command: the first is the job's, the others were taken when their predecessor was finished. */
  async #turns(job: MailboxJob, first: Run, firstView: CommandView): Promise<JobEnd> {
    let run = first;
    let view = firstView;
    try {
      for (;;) {
        const next = await this.#turn(run, view, job);
        if (next === undefined) return undefined;
        if ('again' in next) {
          await this.#add(next.again, job.at);
          return next.again.jobId === job.jobId ? { backMs: BACK_MS } : undefined;
        }
        if (next.taken === undefined) {
          await this.#add(next.job, job.at);
          return undefined;
        }
        this.#leave(run);
        job.onSeeded();
        view = next.taken.view;
        run = this.#take(job, next.taken.job, view);
      }
    } finally {
      this.#leave(run);
    }
  }

  /** Its timers go with it: a time limit of hours must not outlive a run of seconds. */
  #leave(run: Run): void {
    this.#runs.remove(run);
    run.cancellation[Symbol.dispose]();
  }

  #open(job: MailboxJob, cancellation: Cancellation): Run {
    const run: Run = {
      nonce: newNonce(),
      at: job.at,
      commandId: job.commandId,
      number: numberOf(job.jobId),
      kind: job.kind,
      cancellation,
      cancelJob: job.cancel,
      fence: '',
      lease: undefined,
      isFinishing: false,
    };
    onAborted(job.signal, () => cancellation.abort(cancelledError(String(job.signal.reason))));
    this.#runs.add(run);
    return run;
  }

  #take(job: MailboxJob, taken: Job, view: CommandView): Run {
    const nonce = view.fence.slice(view.fence.indexOf('.') + 1);
    const run: Run = {
      nonce,
      at: job.at,
      commandId: taken.commandId,
      number: numberOf(taken.jobId),
      kind: taken.name,
      cancellation: new Cancellation(),
      cancelJob: () => false,
      fence: '',
      lease: undefined,
      isFinishing: false,
    };
    this.#runs.add(run);
    return run;
  }

  async #turn(run: Run, view: CommandView, job: MailboxJob): Promise<Finished> {
    run.fence = view.fence;
    using _heartbeat = this.#runs.heartbeat(run);
    const log = this.#log.child({ job_kind: run.kind, session_key: run.at.key, command_id: run.commandId });
    const begun = performance.now();
    log.info({ verdict: view.verdict, begins: view.begins }, 'command begun');
    const command: Command = {
      at: run.at,
      commandId: run.commandId,
      number: run.number,
      kind: run.kind,
      view,
      lease: run.lease,
      engine: job.engine,
      cancellation: run.cancellation,
      log,
    };
    let outcome: Outcome;
    try {
      outcome = await this.#execute(command);
    } catch (error) {
      outcome = failedOutcome(error);
    }
    // A signal that was fired stays fired: such a call takes no next command.
    const takesNext = !run.cancellation.signal.aborted && !job.signal.aborted && !this.#runs.isDraining;
    const answer = await this.#finisher.finish({
      run,
      command,
      outcome,
      nextNonce: takesNext ? newNonce() : '',
      maxBegins: this.#maxBegins('activate'),
    });
    log.info(
      {
        outcome: `${outcome.class}/${outcome.code}`,
        duration_ms: Math.round(performance.now() - begun),
        ...(outcome.error === undefined ? {} : { reason: reasonOf(outcome.error) }),
      },
      answer === undefined ? 'command dropped' : 'command finished',
    );
    return answer;
  }

  async #add(job: Job | undefined, at: Address): Promise<void> {
    await patiently(async () => await this.#dispatcher.add(job, at.key, at.replyTo));
  }

  #maxBegins(kind: string): number {
    const activate = this.#config.FLEET_MAX_BEGINS;
    return kind === 'close' ? activate + 7 : kind === 'seed' ? activate + 2 : activate;
  }
}

/** A processor that threw: a typed error is its outcome, any other is a fault of ours. */
function failedOutcome(error: unknown): Outcome {
  const typed =
    error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error });
  const body = { message: typed.message };
  const resultClass = RESULT_CLASSES.find((each) => each === typed.resultClass);
  return resultClass === undefined
    ? { class: 'infra', code: 'internal', body, error }
    : { class: resultClass, code: typed.shortCode, body, error };
}
