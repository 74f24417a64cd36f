/** Who is at fault when a command does not end well. `limit`: a budget did its work; nobody is. */
export type Fault = 'none' | 'limit' | 'agent' | 'infrastructure' | 'operator' | 'bug' | 'caller' | 'capacity';

/** How a command ended. `N` commands accepted give `N` of these, whatever was killed, frozen or cut. */
export const RESULT_CLASSES = ['ok', 'incomplete', 'failed', 'infra', 'cancelled'] as const;
export type ResultClass = (typeof RESULT_CLASSES)[number];

interface Verdict {
  readonly fault: Fault;
  /** Whether the same command, tried again in a new session, may end better. */
  readonly retryable: boolean;
  /** Whether a reward computed from the result means anything. */
  readonly rewardValid: boolean;
}

const limit: Verdict = { fault: 'limit', retryable: false, rewardValid: true };
const agent: Verdict = { fault: 'agent', retryable: false, rewardValid: true };
const infrastructure: Verdict = { fault: 'infrastructure', retryable: true, rewardValid: false };
const operator: Verdict = { fault: 'operator', retryable: false, rewardValid: false };
const bug: Verdict = { fault: 'bug', retryable: true, rewardValid: false };
const caller: Verdict = { fault: 'caller', retryable: false, rewardValid: false };
const capacity: Verdict = { fault: 'capacity', retryable: true, rewardValid: false };

/**
 * Every way in which a command can end or be refused, as `class/code`. Adding a code is a minor change; changing the
 * meaning of one is a major change.
 */
export const FAILURES = {
  'ok/done': { fault: 'none', retryable: false, rewardValid: true },
  'ok/nothing_to_close': { fault: 'none', retryable: false, rewardValid: false },

  'incomplete/max_turns': limit,
  'incomplete/max_model_calls': limit,
  'incomplete/max_input_tokens': limit,
  'incomplete/max_output_tokens': limit,
  'incomplete/max_total_tokens': limit,
  'incomplete/wall_time': limit,
  'incomplete/idle_time': limit,
  'incomplete/length': limit,

  'failed/no_answer': agent,
  'failed/content_filter': agent,
  'failed/bad_tool_calls': agent,
  'failed/context_exceeded': agent,

  'infra/model_unreachable': infrastructure,
  'infra/model_rate_limited': infrastructure,
  'infra/model_bad_reply': infrastructure,
  'infra/model_auth': operator,
  'infra/mcp_unreachable': infrastructure,
  'infra/mcp_bad': infrastructure,
  'infra/sandbox_create': infrastructure,
  'infra/sandbox_image': operator,
  'infra/sandbox_lost': infrastructure,
  'infra/sandbox_oom': infrastructure,
  'infra/sandbox_exec': infrastructure,
  'infra/sandbox_disk': infrastructure,
  'infra/sandbox_no_shell': operator,
  'infra/sandbox_limit': operator,
  'infra/runner_start': infrastructure,
  'infra/runner_lost': infrastructure,
  'infra/runner_oom': infrastructure,
  'infra/hermes_crashed': infrastructure,
  'infra/worker_lost': infrastructure,
  'infra/engine_lost': infrastructure,
  'infra/capacity': capacity,
  'infra/credential': operator,
  'infra/timeout_seed': infrastructure,
  'infra/timeout_connect': infrastructure,
  'infra/timeout_close': infrastructure,
  'infra/redis': infrastructure,
  'infra/internal': bug,

  'cancelled/by_caller': caller,
  'cancelled/by_close': caller,
  'cancelled/expired': caller,

  'refused/invalid': caller,
  'refused/config': operator,
  'refused/grant_unsupported': caller,
  'refused/session_unknown': caller,
  'refused/session_closed': caller,
  'refused/session_conflict': caller,
  'refused/too_large': caller,
  'refused/retry_later': capacity,
  'refused/redis': infrastructure,

  // Reasons of an abort signal inside a worker. They steer a run and are never published.
  'internal/fenced': bug,
  'internal/drain': operator,
  'internal/lease_lost': infrastructure,
} as const satisfies Record<string, Verdict>;

export type FailureCode = keyof typeof FAILURES;

/** The table's line for a result, or undefined where the fleet does not know the code (a newer peer made it). */
export function verdictOf(resultClass: string, code: string): Verdict | undefined {
  const table: Readonly<Record<string, Verdict>> = FAILURES;
  return table[`${resultClass}/${code === '' && resultClass === 'ok' ? 'done' : code}`];
}

export interface FleetErrorOptions extends ErrorOptions {
  /** For `refused/retry_later`: how long the caller should wait, in milliseconds. */
  readonly retryAfterMs?: number;
}

/**
 * The one error type of the fleet: a code from {@link FAILURES}, a sentence for people, and the original as `cause`.
 * Callers look at `code`, never at the message.
 */
export class FleetError extends Error {
  override readonly name = 'FleetError';
  readonly code: FailureCode;
  readonly retryAfterMs: number | undefined;

  constructor(code: FailureCode, message: string, options: FleetErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.retryAfterMs = options.retryAfterMs;
  }

  get resultClass(): string {
    return this.code.slice(0, this.code.indexOf('/'));
  }

  /** The code without its class: `max_turns` of `incomplete/max_turns`. */
  get shortCode(): string {
    return this.code.slice(this.code.indexOf('/') + 1);
  }

  get fault(): Fault {
    return FAILURES[this.code].fault;
  }

  get retryable(): boolean {
    return FAILURES[this.code].retryable;
  }
}

/** The sentence of an unknown thrown value; every error's text, its causes' included, in one line. */
export function reasonOf(error: unknown, within: readonly unknown[] = []): string {
  if (!(error instanceof Error)) return String(error);
  // An error may be its own cause.
  if (within.includes(error)) return error.name;
  const inside = [...within, error];
  const cause = error.cause === undefined ? '' : `: ${reasonOf(error.cause, inside)}`;
  const nested = error instanceof AggregateError ? error.errors.map((each) => reasonOf(each, inside)).join('; ') : '';
  return `${error.message === '' ? nested || error.name : error.message}${cause}`.replaceAll(/\s+/g, ' ');
}

/**
 * Wraps a crossing into a foreign library once: what it throws leaves as `code`, with the original as `cause`. A
 * FleetError passes through unchanged.
 *
 * @throws FleetError `code`
 */
export async function boundary<T>(code: FailureCode, what: string, crossing: () => Promise<T>): Promise<T> {
  try {
    return await crossing();
  } catch (error) {
    if (error instanceof FleetError) throw error;
    throw new FleetError(code, what, { cause: error });
  }
}
