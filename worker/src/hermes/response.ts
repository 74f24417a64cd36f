import {
  type ActivationBody,
  type Activate,
  type Integrity,
  type ObservationGap,
  type ResponsesObject,
  type ResponsesUsage,
  type Seed,
  WIRE_VERSION,
} from '@hermes-fleet/shared';
import { wellFormed } from '../command.ts';
import type { Claim } from './activation.ts';
import { outputItems } from './output-items.ts';
import { isRootCall, type ModelCall, type Trajectory } from './trajectory.ts';
import type { Verdict } from './verdict.ts';

export interface BodyOptions {
  readonly seed: Seed;
  readonly activate: Activate;
  readonly responseId: string;
  readonly trajectory: Trajectory;
  readonly verdict: Verdict;
  readonly claim: Claim | undefined;
  /** Assistant messages that were handed in, and are therefore no claims. */
  readonly historyLength: number;
  /** Whether the runner was out of reach of the agent's tools. */
  readonly isolated: boolean;
  readonly hermesVersion: string | null;
  readonly gaps: readonly ObservationGap[];
  readonly timings: Readonly<Record<string, number>>;
}

/** Gaps of what was recorded and is gone again. */
const LOSSES: ReadonlySet<string> = new Set(['model_reply_lost', 'token_ids_lost']);

/** The result of an activation, built from its record. */
export function activationBody(options: BodyOptions): ActivationBody {
  const { seed, activate, trajectory, verdict, hermesVersion, timings } = options;
  const items = outputItems(trajectory, options.responseId);
  const root = trajectory.calls.filter(isRootCall);
  const others = [...trajectory.calls.filter((call) => !isRootCall(call)), ...trajectory.otherCalls];
  const all = [...root, ...others];
  // A try that got no answer may have cost tokens all the same; one that was refused has not.
  const isUsageComplete = all.every(
    ({ usage, error, status }) => usage !== undefined || (error !== undefined && status !== undefined),
  );
  const notes =
    options.claim === undefined || !isOwnEnd(verdict)
      ? []
      : claimNotes(options.claim, trajectory, options.historyLength);
  const integrity: Integrity = notes.length > 0 ? 'mismatch' : options.isolated ? 'captured' : 'claimed';
  const gaps = [...options.gaps, ...trajectory.gaps, ...eventGaps(trajectory)];
  const wasCut = [...trajectory.calls, ...trajectory.toolActs, ...trajectory.mcpActs].some(
    ({ endedAt }) => endedAt === undefined,
  );
  return {
    wire_version: WIRE_VERSION,
    message: verdict.message,
    response: responseOf(options, items, usageOf(root)),
    usage: { root: usageOf(root), others: usageOf(others), total: usageOf(all), complete: isUsageComplete },
    counts: {
      model_calls: all.filter(({ reply }) => reply !== undefined).length,
      model_tries: all.length,
      turns: root.filter(({ reply, who }) => reply !== undefined && who.kind === 'main').length,
      tool_calls: items.filter(({ type }) => type === 'function_call').length,
      mcp_calls: trajectory.mcpActs.length,
      mcp_errors: trajectory.mcpActs.filter(({ outcome }) => outcome?.['is_error'] === true).length,
      agents: new Set(trajectory.calls.map(({ who }) => who.agent).filter((agent) => agent !== null)).size,
    },
    token_continuity: root.flatMap(({ tokens }) => tokens?.continues ?? []),
    integrity,
    integrity_notes: notes,
    complete: !wasCut && !gaps.some(({ code }) => LOSSES.has(code)),
    gaps,
    identity: (activate.identity ?? seed.identity ?? null) as ActivationBody['identity'],
    hermes_version: hermesVersion,
    timings_ms: { ...timings },
  };
}

function responseOf(options: BodyOptions, output: ResponsesObject['output'], usage: ResponsesUsage): ResponsesObject {
  const { seed, activate, verdict, trajectory } = options;
  const status =
    verdict.class === 'ok'
      ? 'completed'
      : verdict.class === 'incomplete'
        ? 'incomplete'
        : verdict.class === 'cancelled'
          ? 'cancelled'
          : 'failed';
  const begun = trajectory.calls[0]?.begunAt ?? Date.now();
  return {
    id: `resp_${options.responseId}`,
    object: 'response',
    created_at: Math.floor(begun / 1000),
    model: seed.model.name,
    status,
    output,
    usage,
    incomplete_details: status === 'incomplete' ? { reason: verdict.code } : null,
    error:
      status === 'failed'
        ? { code: `${verdict.class}/${verdict.code}`, message: verdict.message ?? verdict.code }
        : null,
    instructions: activate.request.instructions ?? null,
    metadata: activate.request.metadata ?? {},
    parallel_tool_calls: true,
    tool_choice: 'auto',
    tools: [],
  };
}

function usageOf(calls: readonly ModelCall[]): ResponsesUsage {
  const sum = (pick: (usage: NonNullable<ModelCall['usage']>) => number): number =>
    calls.reduce((total, { usage }) => total + (usage === undefined ? 0 : pick(usage)), 0);
  const input = sum((usage) => usage.input);
  const output = sum((usage) => usage.output);
  return {
    input_tokens: input,
    input_tokens_details: { cached_tokens: sum((usage) => usage.cached) },
    output_tokens: output,
    output_tokens_details: { reasoning_tokens: sum((usage) => usage.reasoning) },
    total_tokens: input + output,
  };
}

/** Events that say that something is missing, or was changed on the way. */
function eventGaps(trajectory: Trajectory): ObservationGap[] {
  return trajectory.events.flatMap(({ event }) => {
    if (event['kind'] === 'tool_repaired')
      return [
        { code: 'tool_name_repaired', detail: `asked for ${String(event['asked'])}, ran ${String(event['ran'])}` },
      ];
    if (event['kind'] === 'usage_estimated')
      return [
        { code: 'usage_estimated', detail: `call ${String(event['act'])}: its tokens were counted by its bytes` },
      ];
    if (event['kind'] === 'http_refused') return [{ code: 'http_refused', detail: String(event['url']) }];
    if (event['kind'] === 'mcp_missing')
      return [{ code: 'mcp_server_missing', detail: `${String(event['server'])}: ${String(event['error'])}` }];
    return [];
  });
}

/** Whether the agent came to this end by itself: one that is stopped on the way closes its messages as it can. */
const isOwnEnd = ({ class: resultClass, code }: Verdict): boolean =>
  resultClass === 'ok' ||
  resultClass === 'failed' ||
  (resultClass === 'incomplete' && /^(max_turns|length)$/.test(code));

interface Said {
  readonly content: string;
  readonly tools: readonly string[];
}

/**
 * Assistant messages that the runner claims and nobody captured. Rewritten histories (compaction) claim nothing. Hermes
 * changes some messages before it keeps them, and these are no lies: it strips inline reasoning, drops doubled tool calls
 * and surplus delegations, mends arguments that are no JSON, and writes "(empty)" for an empty answer.
 *
 * @see hermes-agent 0.19.0 agent/chat_completion_helpers.py `build_assistant_message`, agent/conversation_loop.py
 */
function claimNotes(claim: Claim, trajectory: Trajectory, historyLength: number): string[] {
  if (claim.messages === undefined || trajectory.events.some(({ event }) => event['kind'] === 'compaction')) return [];
  const captured: Said[] = trajectory.calls
    .filter(isRootCall)
    .flatMap(({ reply }) =>
      reply === undefined
        ? []
        : [{ content: visible(reply.content), tools: reply.tools.map((tool) => canonical(tool.arguments)) }],
    );
  const notes: string[] = [];
  const claimed = claim.messages.slice(historyLength).filter(({ role }) => role === 'assistant');
  // Where the summary at the turn limit fails, Hermes hands its error over as the answer.
  if (claim.summaryFailed) claimed.pop();
  for (const message of claimed) {
    const said = saidIn(message);
    const at = captured.findIndex((each) => mayBecome(each, said));
    if (at < 0)
      notes.push(`the runner claims an assistant message that no captured call made: ${said.content.slice(0, 200)}`);
    else captured.splice(at, 1);
  }
  return notes;
}

function saidIn(message: Readonly<Record<string, unknown>>): Said {
  const { content, tool_calls: calls } = message;
  const parts = Array.isArray(content) ? (content as { readonly text?: unknown }[]) : [];
  const text =
    typeof content === 'string'
      ? content
      : parts.map((part) => (typeof part.text === 'string' ? part.text : '')).join('');
  const tools = Array.isArray(calls) ? (calls as { readonly function?: { readonly arguments?: unknown } }[]) : [];
  return { content: visible(text), tools: tools.map((tool) => canonical(tool.function?.arguments)) };
}

function mayBecome(captured: Said, said: Said): boolean {
  // Hermes joins the parts of a text its own way.
  if (squeezed(captured.content) !== squeezed(said.content) || (captured.tools.length > 0 && said.tools.length === 0))
    return false;
  let from = 0;
  return said.tools.every((tool) => {
    const at = captured.tools.findIndex((each, index) => index >= from && (each === tool || each === BROKEN));
    from = at + 1;
    return at >= 0;
  });
}

const squeezed = (text: string): string => text.replaceAll(/\s/g, '');

const BROKEN = 'not JSON';

/** Arguments as one spelling of their JSON. */
function canonical(args: unknown): string {
  if (typeof args !== 'string') return JSON.stringify(args ?? {});
  if (args.trim() === '') return '{}';
  try {
    return JSON.stringify(JSON.parse(wellFormed(args)) ?? {});
  } catch {
    return BROKEN;
  }
}

const TAGS = 'think|thinking|reasoning|reasoning_scratchpad|thought|tool_calls?|tool_result|function_calls?';
const PAIRS = new RegExp(`<(${TAGS})\\b[^>]*>.*?</\\1\\s*>`, 'gis');
const OPEN_END = new RegExp(`(?:^|\\n)[ \\t]*<(?:${TAGS})\\b[^>]*>.*$`, 'is');
const STRAY = new RegExp(`</?(?:${TAGS})\\b[^>]*>`, 'gi');

function visible(text: string): string {
  const shown = wellFormed(text)
    .replaceAll(PAIRS, '')
    .replace(OPEN_END, '')
    .replaceAll(STRAY, '')
    .replaceAll(/\s+/g, ' ');
  return shown.trim() === '(empty)' ? '' : shown.trim();
}
