import { z } from 'zod';
import { RESULT_CLASSES, verdictOf } from './failure.ts';
import { ObservationBundle, ObservationGap } from './observation.ts';
import { ResponsesObject, ResponsesUsage } from './responses.ts';

/**
 * What a result's content rests on. `captured`: the worker's record, with the runner out of reach of the tools, and the
 * runner's claim agrees. `claimed`: the runner was within their reach. `mismatch`: claim and record differ; the record stands.
 */
export const Integrity = z.enum(['captured', 'claimed', 'mismatch']);
export type Integrity = z.infer<typeof Integrity>;

/** Milliseconds per stage, as far as it was reached. */
const Timings = z.record(z.string(), z.number().nonnegative());

/** One sentence for people, or none. */
const message = z.string().nullable();

/** Body of a seed's result. */
export const SeedBody = z.object({
  wire_version: z.string(),
  message,
  /** Hermes that the session's activations run with. */
  hermes_version: z.string().nullable(),
  /** `runner`: in a runner of its own. Inside the sandbox: `image`, its own one was used; `packed`, ours was put there. */
  hermes_origin: z.enum(['runner', 'image', 'packed']).nullable(),
  /** `image` is null for a borrowed one. */
  sandbox: z
    .object({ provider: z.string(), id: z.string(), image: z.string().nullable(), workdir: z.string() })
    .nullable(),
  /** What the sandbox lacks, and what is therefore not offered. */
  gaps: z.array(ObservationGap),
  timings_ms: Timings,
});
export type SeedBody = z.infer<typeof SeedBody>;

/** Body of an activation's result: everything observed up to its end, whatever the end was. */
export const ActivationBody = z.object({
  wire_version: z.string(),
  message,
  response: ResponsesObject,
  /** Tokens of the root agent, of everyone else, and the sum; `complete` is false when a call's usage is not known. */
  usage: z.object({ root: ResponsesUsage, others: ResponsesUsage, total: ResponsesUsage, complete: z.boolean() }),
  /** `model_calls` counts calls that were answered; `model_tries` those that were sent; `turns` the root agent's. */
  counts: z.object({
    model_calls: z.number().int(),
    model_tries: z.number().int(),
    turns: z.number().int(),
    tool_calls: z.number().int(),
    mcp_calls: z.number().int(),
    mcp_errors: z.number().int(),
    agents: z.number().int(),
  }),
  /**
   * One for each call of the root agent that came with prompt token ids: whether its prompt begins with the prompt and
   * generation of the call before, token by token. Where it is false a trainer must begin a new sequence.
   */
  token_continuity: z.array(z.boolean()),
  integrity: Integrity,
  /** What differed, when `integrity` is `mismatch`. */
  integrity_notes: z.array(z.string()),
  /** False when something is known to be missing from the record. */
  complete: z.boolean(),
  gaps: z.array(ObservationGap),
  identity: z.record(z.string(), z.json()).nullable(),
  hermes_version: z.string().nullable(),
  timings_ms: Timings,
});
export type ActivationBody = z.infer<typeof ActivationBody>;

const CollectedOutput = z.object({
  /** Exit code; null when the command could not be run. */
  exit_code: z.number().int().nullable(),
  stdout: z.string(),
  stderr: z.string(),
  /** True when bytes were cut. */
  truncated: z.boolean(),
  error: z.string().nullable(),
});

const CollectedFile = z.object({
  path: z.string(),
  size: z.number().int(),
  text: z.string().nullable(),
  base64: z.string().nullable(),
  truncated: z.boolean(),
  error: z.string().nullable(),
});

/** Body of a close's result. */
export const CloseBody = z.object({
  wire_version: z.string(),
  message,
  /** How the session ended: class and code of its last activation, else of the seed that failed, else `cancelled`. */
  session: z.object({ class: z.enum(RESULT_CLASSES), code: z.string() }),
  observations: ObservationBundle,
  collected: z.object({ commands: z.record(z.string(), CollectedOutput), files: z.array(CollectedFile) }).nullable(),
  /** What became of the sandbox. */
  sandbox: z.enum(['removed', 'disconnected', 'none', 'left_to_reaper']),
  /** Stable across repeats of the close. */
  receipt: z.string(),
  timings_ms: Timings,
});
export type CloseBody = z.infer<typeof CloseBody>;

/** What Redis holds of a result: in the session's record, and as field `r` of its entry on the results stream. */
export const StoredResult = z.object({
  class: z.enum(RESULT_CLASSES),
  code: z.string(),
  /** `<epoch>.<nonce>` of the run that published it; empty when a script did. */
  fence: z.string(),
  /** Key of the body, gzip, when it is over 64 KiB; else empty. */
  blob: z.string(),
  body: z.unknown(),
});
export type StoredResult = z.infer<typeof StoredResult>;

export const COMMAND_KINDS = ['seed', 'activate', 'close'] as const;
export type CommandKind = (typeof COMMAND_KINDS)[number];

/** One terminal result of one command, as a client sees it. */
export interface CommandResult<Body = unknown> {
  readonly session_id: string;
  /** `seed`, the activation id, or `close`, `close.2`, … */
  readonly command_id: string;
  readonly kind: CommandKind;
  readonly class: StoredResult['class'];
  readonly code: string;
  readonly fault: string;
  readonly retryable: boolean;
  /** Whether a reward computed from this result means anything. */
  readonly reward_valid: boolean;
  readonly fence: string;
  /** Null when a script ended the command (cancelled while it waited, its engine lost, …). */
  readonly body: Body | null;
}

/** Completes a stored result with the failure table's verdict. `ok` without a code reads `done`. */
export function commandResult(
  sessionId: string,
  commandId: string,
  kind: CommandKind,
  stored: StoredResult,
  body: unknown,
): CommandResult {
  const verdict = verdictOf(stored.class, stored.code);
  return {
    session_id: sessionId,
    command_id: commandId,
    kind,
    class: stored.class,
    code: stored.class === 'ok' && stored.code === '' ? 'done' : stored.code,
    fault: verdict?.fault ?? 'bug',
    retryable: verdict?.retryable ?? false,
    reward_valid: verdict?.rewardValid ?? false,
    fence: stored.fence,
    body: body ?? null,
  };
}
