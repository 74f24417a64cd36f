import { type FinishAnswer, type Job, type Next, reasonOf, type Scripts } from '@hermes-fleet/shared';
import { type Command, type Outcome, publishableBody } from './command.ts';
import type { Config } from './config.ts';
import { dropLease } from './lease.ts';
import type { Run } from './runs.ts';

/** How a command left this worker: with what comes next, given back, or (undefined) to another run. */
export type Finished = Next | { readonly again: Job } | undefined;

export interface FinishRequest {
  readonly run: Run;
  readonly command: Command;
  readonly outcome: Outcome;
  /** '' when the session's next command is not to be taken. */
  readonly nextNonce: string;
  readonly maxBegins: number;
}

/** What one answer of the finish script means: an end, or another try with another outcome. */
type Step = { readonly end: Finished } | { readonly retry: Outcome };

/** Publishes how a command ended (`protocol.md` §6, steps 7 and 8): the script decides, and is asked until it has. */
export class Finisher {
  readonly #scripts: Scripts;
  readonly #config: Config;

  constructor(scripts: Scripts, config: Config) {
    this.#scripts = scripts;
    this.#config = config;
  }

  async finish(request: FinishRequest): Promise<Finished> {
    const { run } = request;
    const { outcome: decided, isOurs } = await this.#decide(request);
    if (!isOurs) return await this.#drop(run, decided, '');
    run.isFinishing = true;
    for (let outcome = decided; ;) {
      if (run.kind === 'seed' && outcome.class !== 'ok') await outcome.release?.();
      const { body, blob } = await publishableBody(this.#scripts, run, outcome, this.#config);
      const step = await this.#step({ ...request, outcome }, await this.#call(request, outcome, body, blob), blob);
      if ('end' in step) return step.end;
      outcome = step.retry;
    }
  }

  /** The reason of the run's signal stands above what its processor made of it. */
  async #decide({ run, outcome }: FinishRequest): Promise<{ readonly outcome: Outcome; readonly isOurs: boolean }> {
    const { reason } = run.cancellation;
    if (reason?.code === 'internal/fenced') return { outcome, isOurs: false };
    // A close has come to its end in any case; done again, it would find nothing more to collect.
    if (run.kind !== 'close' && (reason?.code === 'internal/lease_lost' || reason?.code === 'internal/drain')) {
      await outcome.release?.();
      return { outcome: { ...outcome, class: 'again', code: '' }, isOurs: true };
    }
    const isCancelled = reason?.resultClass === 'cancelled' && run.kind !== 'close';
    return {
      outcome: isCancelled ? { ...outcome, class: 'cancelled', code: reason.shortCode } : outcome,
      isOurs: true,
    };
  }

  async #call(
    { run, command, nextNonce, maxBegins }: FinishRequest,
    outcome: Outcome,
    body: string,
    blob: string,
  ): Promise<FinishAnswer> {
    const isOk = outcome.class === 'ok';
    return await this.#scripts.finish(run.at, {
      commandId: run.commandId,
      fence: run.fence,
      resultClass: outcome.class,
      code: outcome.code,
      body,
      blob,
      blobTtlMs: this.#config.FLEET_RESULTS_TTL_MS,
      holdMs: this.#config.FLEET_HOLD_MS,
      queue: outcome.seeded?.queue ?? 'any',
      engine: run.lease?.engine ?? command.view.engine,
      descriptor: isOk ? (outcome.seeded?.descriptor ?? '') : '',
      released: run.kind === 'seed' && !isOk,
      lost: outcome.isSandboxLost === true,
      nextNonce: outcome.class === 'again' ? '' : nextNonce,
      maxBegins,
    });
  }

  async #step({ run, command, outcome }: FinishRequest, answer: FinishAnswer, blob: string): Promise<Step> {
    switch (answer.status) {
      case 'blob_missing':
        return { retry: outcome };
      case 'cancel_pending':
        return { retry: { ...outcome, class: 'cancelled', code: answer.code } };
      case 'lease_lost':
        await outcome.release?.();
        return { retry: { ...outcome, class: 'again', code: '' } };
      case 'again':
        return { end: { again: answer.job } };
      case 'fenced':
      case 'gone':
        return { end: await this.#drop(run, outcome, blob) };
      case 'dup':
        // With our own fence only the answer had been lost; with another's, ours is debris.
        if (answer.fence === run.fence) await this.#settled(command, outcome);
        else await this.#drop(run, outcome, blob);
        return { end: answer.next };
      case 'published':
        await this.#settled(command, outcome);
        return { end: answer.next };
      default:
        return answer satisfies never;
    }
  }

  /** What follows a result that is out. None of it may keep the session's next command waiting, or fail it. */
  async #settled(command: Command, outcome: Outcome): Promise<void> {
    try {
      await outcome.settled?.();
    } catch (error) {
      command.log.warn({ reason: reasonOf(error) }, 'clean-up after a result failed');
    }
  }

  /** Nothing is published: another run has the command. What is ours and not the record's goes. */
  async #drop(run: Run, outcome: Outcome, blob: string): Promise<undefined> {
    await outcome.release?.();
    if (run.lease !== undefined) await dropLease(this.#scripts, run.lease);
    if (blob !== '') await this.#scripts.redis.unlink(blob);
    return undefined;
  }
}
