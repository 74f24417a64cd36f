import { FleetError, type ResultClass } from '@hermes-fleet/shared';
import type { ActivationEnd, Claim } from './activation.ts';
import { isRootCall, type ModelCall, type Trajectory } from './trajectory.ts';

export interface Verdict {
  readonly class: ResultClass;
  readonly code: string;
  readonly message: string | null;
}

const verdict = (error: FleetError): Verdict => ({
  class: error.resultClass as ResultClass,
  code: error.shortCode,
  message: error.message,
});

export interface EndFacts {
  /** The reason of the run's signal, which decides whatever the runner says. */
  readonly aborted: FleetError | undefined;
  readonly end: ActivationEnd;
  readonly trajectory: Trajectory;
  /** Why the root agent's last call failed. */
  readonly modelFailure: FleetError | undefined;
}

/** How an activation ended, judged by the record; the runner's claim only tells apart what the record cannot. */
export function verdictOf(facts: EndFacts): Verdict {
  const { aborted, end, trajectory, modelFailure } = facts;
  if (aborted !== undefined) return verdict(blamed(aborted, modelFailure));
  const { claim, exit } = end;
  if (claim === undefined) return lostRunner(exit);
  if (claim.status === 'setup_failed') {
    const [first] = claim.mcp;
    return verdict(
      first === undefined
        ? new FleetError('infra/runner_start', `Hermes could not be set up (${claim.error ?? 'no reason given'})`)
        : new FleetError('infra/mcp_bad', `MCP server "${first.server}" cannot be used: ${first.error}`),
    );
  }
  const root = trajectory.calls.filter(isRootCall);
  const answered = root.filter(({ reply }) => reply !== undefined);
  if (modelFailure !== undefined && claim.exitReason?.startsWith('max_iterations') !== true)
    return verdict(modelFailure);
  if (claim.exitReason?.startsWith('max_iterations') === true)
    return verdict(new FleetError('incomplete/max_turns', 'the limit of turns is reached'));
  if (answered.length === 0)
    return verdict(
      new FleetError(
        'infra/hermes_crashed',
        `Hermes made no model call (${claim.error ?? claim.exitReason ?? claim.status})`,
      ),
    );
  return outsideOf(claim) ?? judgeLast(answered.at(-1), claim);
}

/** Time that ran out while the Model Server was not answering is no limit that the policy has met. */
function blamed(aborted: FleetError, modelFailure: FleetError | undefined): FleetError {
  const isTime = aborted.code === 'incomplete/wall_time' || aborted.code === 'incomplete/idle_time';
  if (!isTime || modelFailure?.resultClass !== 'infra') return aborted;
  return new FleetError(modelFailure.code, `${modelFailure.message}; then ${aborted.message}`, { cause: aborted });
}

function lostRunner(exit: ActivationEnd['exit']): Verdict {
  const detail = exit.detail === '' ? '' : `: ${exit.detail.trim().slice(-500)}`;
  if (exit.oom) return verdict(new FleetError('infra/runner_oom', `the runner ran out of memory${detail}`));
  if (exit.rc !== null && exit.rc > 0)
    return verdict(new FleetError('infra/hermes_crashed', `Hermes ended with ${exit.rc} and no result${detail}`));
  return verdict(
    new FleetError(
      'infra/runner_lost',
      `the runner was lost (${exit.rc === null ? 'its host is gone' : `signal ${-exit.rc}`})${detail}`,
    ),
  );
}

/** What ended the agent and was none of its doing. */
function outsideOf(claim: Claim): Verdict | undefined {
  // Nobody who may stop the agent did, or the run's signal would say so: its host is going away.
  if (claim.status === 'interrupted')
    return verdict(new FleetError('infra/runner_lost', 'the agent was interrupted from outside'));
  if (claim.exception !== undefined)
    return verdict(new FleetError('infra/hermes_crashed', `Hermes failed (${claim.exception})`));
  if (/^(local_processing_error|error_near_max_iterations)/.test(claim.exitReason ?? ''))
    return verdict(new FleetError('infra/hermes_crashed', `Hermes failed (${claim.exitReason})`));
  return undefined;
}

function judgeLast(last: ModelCall | undefined, claim: Claim): Verdict {
  const why = claim.error ?? claim.exitReason ?? claim.status;
  if (last?.finishReason === 'length')
    return verdict(new FleetError('incomplete/length', 'the last answer was cut at its token limit'));
  if (last?.finishReason === 'content_filter')
    return verdict(new FleetError('failed/content_filter', 'the last answer was filtered'));
  const wantsTools = (last?.reply?.tools.length ?? 0) > 0;
  if (wantsTools)
    return verdict(new FleetError('failed/bad_tool_calls', `the agent gave up on its tool calls (${why})`));
  const hasAnswer = last?.reply !== undefined && last.reply.content.trim() !== '';
  if (!hasAnswer) return verdict(new FleetError('failed/no_answer', 'the model ended without an answer'));
  if (claim.status === 'completed') return { class: 'ok', code: 'done', message: null };
  return verdict(new FleetError('infra/hermes_crashed', `Hermes failed (${why})`));
}
