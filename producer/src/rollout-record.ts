import type { ActivationBody, CloseBody, CommandResult, Fault, ResultClass } from '@hermes-fleet/shared';
import { membersOf } from './json-members.ts';
import type { TaskRow } from './sweep-tasks.ts';

/** How one attempt at a rollout ended. */
export interface AttemptEnd {
  readonly sessionId: string;
  readonly attempt: number;
  readonly class: ResultClass;
  readonly code: string;
  readonly fault: Fault | (string & {});
  readonly retryable: boolean;
  readonly rewardValid: boolean;
  readonly message: string | null;
  readonly activation: CommandResult<ActivationBody> | undefined;
  readonly close: CommandResult<CloseBody> | undefined;
}

/** Which rollout a line is about. */
export interface RolloutAt {
  readonly row: TaskRow;
  readonly rollout: number;
}

/** Fields of a result line that are ours; a row's own fields of these names are dropped. */
const OWN = new Set(['_ng_task_index', '_ng_rollout_index', '_ng_attempt_index', 'response', 'fleet']);

/**
 * One line of OUT.jsonl, without its end: the row's fields as they were written, then ours.
 *
 * @param isObserved put the session's observation bundle into the line
 */
export function resultLine(at: RolloutAt, end: AttemptEnd, isObserved: boolean): string {
  const { close } = end;
  const fleet = {
    session_id: end.sessionId,
    row_digest: at.row.digest,
    class: end.class,
    code: end.code,
    fault: end.fault,
    retryable: end.retryable,
    reward_valid: end.rewardValid,
    attempt: end.attempt,
    message: end.message,
    ...recordOf(end),
    ...(isObserved ? { observations: close?.body?.observations ?? null } : {}),
    ...(close?.body?.collected == null ? {} : { collected: close.body.collected }),
  };
  const kept = membersOf(at.row.text).filter(({ key }) => !OWN.has(key));
  const own = [
    ...indexMembers(at, end.attempt),
    `"response":${JSON.stringify(end.activation?.body?.response ?? null)}`,
    `"fleet":${JSON.stringify(fleet)}`,
  ];
  return safeLine(`{${[...kept.map(({ text }) => text), ...own].join(',')}}`);
}

function recordOf({ activation, close }: AttemptEnd): Record<string, unknown> {
  const body = activation?.body;
  if (body == null) return {};
  const { integrity, integrity_notes, complete, counts, usage, gaps } = body;
  const timings_ms = { activation: body.timings_ms, close: close?.body?.timings_ms };
  return { integrity, integrity_notes, complete, counts, usage, timings_ms, gaps };
}

/** One line of the failures file: an attempt whose result may not be scored. */
export function failureLine(at: RolloutAt, end: AttemptEnd, isLast: boolean): string {
  const fields = {
    _ng_failure_class: `${end.class}/${end.code}`,
    _ng_failure_terminal: isLast,
    session_id: end.sessionId,
    row_digest: at.row.digest,
    line: at.row.line,
    class: end.class,
    code: end.code,
    fault: end.fault,
    retryable: end.retryable,
    attempt: end.attempt,
    message: end.message,
  };
  return safeLine(`{${indexMembers(at, end.attempt).join(',')},${JSON.stringify(fields).slice(1)}`);
}

function indexMembers(at: RolloutAt, attempt: number): string[] {
  return [
    `"_ng_task_index":${at.row.index}`,
    `"_ng_rollout_index":${at.rollout}`,
    ...(attempt > 0 ? [`"_ng_attempt_index":${attempt}`] : []),
  ];
}

const ESCAPE = /\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)/g;
const PAIR_LENGTH = 12;

/**
 * JSON text that every reader takes for one line and can encode: characters at which some of them end lines are escaped,
 * halves of surrogate pairs become U+FFFD.
 */
export function safeLine(json: string): string {
  return (
    json
      .replaceAll(ESCAPE, (escape) =>
        escape.length < PAIR_LENGTH && /^\\u[dD][89a-fA-F]/.test(escape) ? String.raw`\ufffd` : escape,
      )
      .replaceAll(/[\u0085\u2028\u2029]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16).padStart(4, '0')}`)
      // Outside of strings, where alone it can stand, it is white space.
      .replaceAll('\r', ' ')
  );
}
