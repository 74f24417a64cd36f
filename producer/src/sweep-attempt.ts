import { setTimeout as sleep } from 'node:timers/promises';
import {
  type ActivationBody,
  type CloseBody,
  type CommandResult,
  FleetError,
  reasonOf,
  type ResultClass,
  type SeedBody,
  verdictOf,
} from '@hermes-fleet/shared';
import type { FleetClient } from './client.ts';
import type { AttemptEnd } from './rollout-record.ts';
import type { RowPlan } from './sweep-tasks.ts';

export interface AttemptOptions {
  readonly client: FleetClient;
  readonly plan: RowPlan;
  /** Name under which the fleet knows the sweep. */
  readonly sweepId: string;
  readonly runKey: string;
  readonly task: number;
  readonly rollout: number;
  readonly attempt: number;
  /** From hand-in to the last result, in ms; over: the session is closed, and the attempt counts as lost. */
  readonly deadlineMs: number;
  /** The sweep was cancelled and waited for long enough. */
  readonly signal: AbortSignal;
}

const ACTIVATION = 'task';
/** How long to wait for what should be there already, or for a close that ends a lost session. */
const SETTLE_MS = 30_000;
const PAUSE_MS = 1_000;

/** Name of the results stream of a sweep. */
export const sweepStream = (sweepId: string): string => `sweep.${sweepId}`;

/** One try at a rollout: a session of its own, handed in whole, and followed to its end. It never throws for what the fleet does. */
export async function runAttempt(options: AttemptOptions): Promise<AttemptEnd> {
  const sessionId = `${options.sweepId}/${options.runKey}/${options.task}/${options.rollout}/a${options.attempt}`;
  const deadline = AbortSignal.timeout(Math.min(options.deadlineMs, LONGEST_TIMER_MS));
  const signal = AbortSignal.any([options.signal, deadline]);
  try {
    const close = await closeOf(sessionId, options, signal);
    return await judge(sessionId, close, options);
  } catch (error) {
    if (options.signal.aborted)
      return ended(sessionId, options, 'cancelled', 'by_caller', 'no result came after the cancel');
    if (deadline.aborted) return await lost(sessionId, options, error);
    const failure =
      error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error });
    if (failure.code === 'refused/session_closed')
      return ended(sessionId, options, 'cancelled', 'by_caller', failure.message);
    const code = failure.code === 'refused/redis' ? 'redis' : 'internal';
    return ended(sessionId, options, 'infra', code, failure.message);
  }
}

/** The longest delay that a timer takes. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** Hands the session in and waits for its end. One that a Redis lost, in a crash of its own, is handed in again. */
async function closeOf(
  sessionId: string,
  options: AttemptOptions,
  signal: AbortSignal,
): Promise<CommandResult<CloseBody>> {
  for (;;) {
    await handIn(sessionId, options, signal);
    try {
      return await patient(
        async () => (await options.client.wait(sessionId, 'close', { signal })) as CommandResult<CloseBody>,
        signal,
      );
    } catch (error) {
      if (!(error instanceof FleetError) || error.code !== 'refused/session_unknown') throw error;
      await sleep(PAUSE_MS, undefined, { signal });
    }
  }
}

/** Repeats a call while the fleet is full or Redis is away. */
async function patient<T>(call: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (;;) {
    signal.throwIfAborted();
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof FleetError) || (error.code !== 'refused/retry_later' && error.code !== 'refused/redis'))
        throw error;
      await sleep(error.retryAfterMs ?? PAUSE_MS, undefined, { signal });
    }
  }
}

/** Hands the plan in until it is taken; what an earlier process handed in is joined. */
async function handIn(sessionId: string, options: AttemptOptions, signal: AbortSignal): Promise<void> {
  const { client, plan, sweepId, attempt } = options;
  const identity = {
    rollout_id: sessionId.slice(0, sessionId.lastIndexOf('/')),
    attempt,
    task_id: plan.taskId,
    sweep_id: sweepId,
    group_id: String(options.task),
  };
  await patient(async () => {
    try {
      await client.submit({
        seed: { ...plan.seed, session_id: sessionId, reply_to: sweepStream(sweepId), identity },
        activations: [{ session_id: sessionId, activation_id: ACTIVATION, request: plan.request }],
        close: { session_id: sessionId, when: 'idle' },
      });
    } catch (error) {
      // The whole plan is there already, its close too: what waits for it joins.
      const isClosed = error instanceof FleetError && error.code === 'refused/session_closed';
      if (!isClosed || !(await isKnown(sessionId, options))) throw error;
    }
  }, signal);
}

async function isKnown(sessionId: string, options: AttemptOptions): Promise<boolean> {
  try {
    return (await options.client.status(sessionId)).commands.some(({ id }) => id === ACTIVATION);
  } catch (error) {
    if (error instanceof FleetError && error.code === 'refused/session_unknown') return false;
    throw error;
  }
}

/** The activation decides; where it says nothing, what its session says at the close. */
async function judge(sessionId: string, close: CommandResult<CloseBody>, options: AttemptOptions): Promise<AttemptEnd> {
  const activation = (await resultOf(sessionId, ACTIVATION, options)) as CommandResult<ActivationBody> | undefined;
  if (activation?.body == null) {
    // Nothing ran, and the seed says why; or what ran left nothing, and then it cannot be scored, whatever its class.
    const seed = (await resultOf(sessionId, 'seed', options)) as CommandResult<SeedBody> | undefined;
    const said = activation ?? close.body?.session ?? { class: 'infra', code: 'worker_lost' };
    const end =
      verdictOf(said.class, said.code)?.rewardValid === true
        ? ended(sessionId, options, 'infra', 'internal', 'the body of the result is gone')
        : ended(sessionId, options, said.class, said.code, seed?.body?.message ?? close.body?.message ?? null);
    return { ...end, activation, close };
  }
  return {
    sessionId,
    attempt: options.attempt,
    class: activation.class,
    code: activation.code === '' ? 'done' : activation.code,
    fault: activation.fault,
    retryable: activation.retryable,
    rewardValid: activation.reward_valid,
    message: activation.body.message,
    activation,
    close,
  };
}

async function resultOf(
  sessionId: string,
  commandId: string,
  options: AttemptOptions,
): Promise<CommandResult | undefined> {
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(SETTLE_MS)]);
  try {
    return await options.client.wait(sessionId, commandId, { signal });
  } catch (error) {
    if (options.signal.aborted) throw error;
    if (signal.aborted || (error instanceof FleetError && error.code === 'refused/session_unknown')) return undefined;
    throw error;
  }
}

/** Its time is over. It is closed, so that it holds nothing; what came in the last moment still counts. */
async function lost(sessionId: string, options: AttemptOptions, cause: unknown): Promise<AttemptEnd> {
  const message = `no result within ${options.deadlineMs / 1000} s (${reasonOf(cause)})`;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(SETTLE_MS)]);
  try {
    const close = await options.client.close({ session_id: sessionId }, { signal });
    if (close.body !== null) {
      const end = await judge(sessionId, close, options);
      if (end.rewardValid) return end;
    }
  } catch {
    // Redis is away, or nobody closes it: the session's own time limit will.
  }
  return ended(sessionId, options, 'infra', 'worker_lost', message);
}

function ended(
  sessionId: string,
  options: AttemptOptions,
  resultClass: ResultClass,
  code: string,
  message: string | null,
): AttemptEnd {
  const verdict = verdictOf(resultClass, code);
  return {
    sessionId,
    attempt: options.attempt,
    class: resultClass,
    code,
    fault: verdict?.fault ?? 'bug',
    retryable: verdict?.retryable ?? false,
    rewardValid: false,
    message,
    activation: undefined,
    close: undefined,
  };
}
