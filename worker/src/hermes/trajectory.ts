import { hermesServerName, type ObservationGap } from '@hermes-fleet/shared';
import {
  type ExactObject,
  isExactObject,
  numberOf,
  parseExact,
  stringifyExact,
  textOf,
} from '../capture/exact-json.ts';
import type { JournalRecord, RecordedAct, RecordedEvent } from '../capture/journal.ts';
import type { Who } from '../capture/model-calls.ts';

export interface CallTokens {
  readonly promptIds: number[] | undefined;
  readonly generationIds: number[] | undefined;
  readonly logProbs: number[] | undefined;
  /** Whether the prompt begins with the agent's previous prompt and generation; undefined without prompt ids. */
  readonly continues: boolean | undefined;
}

export interface TokenUsage {
  readonly input: number;
  readonly output: number;
  readonly cached: number;
  readonly reasoning: number;
}

/** One tool call that a reply asks for; the arguments are the model's own bytes. */
export interface AskedTool {
  /** The server's own, or the one that Hermes was told in its place. */
  readonly id: string;
  readonly name: string;
  readonly arguments: string;
}

/** One try of a model call, as it was recorded. */
export interface ModelCall {
  readonly act: string;
  readonly who: Who;
  readonly begunAt: number;
  readonly endedAt: number | undefined;
  /** Hashes of the request's messages. */
  readonly messages: readonly string[];
  /** Undefined when it got no usable answer, or none that was recorded. */
  readonly reply:
    | { readonly content: string; readonly reasoning: string; readonly tools: readonly AskedTool[] }
    | undefined;
  readonly error: string | undefined;
  /** HTTP status; undefined when there was no answer. */
  readonly status: number | undefined;
  readonly responseId: string | undefined;
  readonly finishReason: string | undefined;
  readonly usage: TokenUsage | undefined;
  readonly tokens: CallTokens | undefined;
}

/** What one run of an activation did, out of its journal: the only source of its result. */
export interface Trajectory {
  readonly calls: readonly ModelCall[];
  readonly toolActs: readonly RecordedAct[];
  readonly mcpActs: readonly RecordedAct[];
  readonly events: readonly RecordedEvent[];
  /** Calls of all runs under other fences: they cost tokens and say nothing of the result. */
  readonly otherCalls: readonly ModelCall[];
  readonly texts: ReadonlyMap<string, string>;
  readonly gaps: readonly ObservationGap[];
}

/** Acts that an agent's tool call made: after its reply, before the agent's next one. A server may give every call one id. */
export function actsOf(
  asked: AskedTool,
  call: ModelCall,
  until: number | undefined,
  acts: readonly RecordedAct[],
): RecordedAct[] {
  const isTold = asked.id !== '' && call.reply?.tools.filter(({ id }) => id === asked.id).length === 1;
  if (!isTold) return [];
  return acts.filter(({ intent, begunAt }) => {
    const who = intent['who'] as Who | undefined;
    return (
      who?.call === asked.id &&
      who.agent === call.who.agent &&
      begunAt >= (call.endedAt ?? Infinity) &&
      begunAt <= (until ?? Infinity)
    );
  });
}

export const isRootCall = ({ who }: ModelCall): boolean => who.parent === null && who.kind !== 'auxiliary';

/** A call that the runner did not tag: it must not pass for the root agent's. */
const NOBODY: Who = { agent: null, parent: null, spawned_by: null, kind: 'auxiliary' };

/** @param fence the run that counts; undefined: the last one that is recorded */
export function trajectoryOf(record: JournalRecord, fence?: string): Trajectory {
  const counting = fence ?? record.acts.at(-1)?.fence ?? record.events.at(-1)?.fence ?? '';
  const acts = record.acts.filter((act) => act.fence === counting);
  const sequences = new Map<string, number[]>();
  const gaps: ObservationGap[] = [];
  const calls = acts.filter(({ kind }) => kind === 'model').map((act) => modelCall(act, record.texts, sequences, gaps));
  const others = record.acts
    .filter(({ kind, fence: own }) => kind === 'model' && own !== counting)
    .map((act) => modelCall(act, record.texts, new Map(), []));
  const mcpActs = acts.filter(({ kind }) => kind === 'mcp');
  for (const { intent, outcome } of mcpActs)
    // Hermes hands texts on, and nothing else.
    if (outcome?.['has_media'] === true)
      gaps.push({ code: 'mcp_media_dropped', detail: `${String(intent['server'])}: ${String(intent['tool'])}` });
  return {
    calls,
    toolActs: acts.filter(({ kind }) => kind === 'tool'),
    mcpActs,
    events: record.events.filter((event) => event.fence === counting),
    otherCalls: others,
    texts: record.texts,
    gaps,
  };
}

const word = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined);

function modelCall(
  act: RecordedAct,
  texts: ReadonlyMap<string, string>,
  sequences: Map<string, number[]>,
  gaps: ObservationGap[],
): ModelCall {
  const { intent, outcome } = act;
  const text = texts.get(word(outcome?.['body']) ?? '');
  const isAnswered = outcome !== undefined && outcome['error'] === undefined;
  const tokenText = texts.get(word(outcome?.['tokens']) ?? '');
  const tokens = tokenText === undefined ? undefined : tokensOf(act.act, tokenText, sequences);
  const lose = (isLost: boolean, code: string): void => {
    if (isLost) gaps.push({ code, detail: `call ${act.act}` });
  };
  lose(isAnswered && text === undefined, 'model_reply_lost');
  lose(tokens === undefined && word(outcome?.['tokens']) !== undefined, 'token_ids_lost');
  return {
    act: act.act,
    who: (intent['who'] as Who | undefined) ?? NOBODY,
    begunAt: act.begunAt,
    endedAt: act.endedAt,
    messages: Array.isArray(intent['messages']) ? intent['messages'].map(String) : [],
    reply: isAnswered && text !== undefined ? replyOf(text, outcome['tool_ids']) : undefined,
    error: word(outcome?.['error']),
    status: Number.isInteger(outcome?.['status']) ? Number(outcome?.['status']) : undefined,
    responseId: word(outcome?.['response_id']),
    finishReason: word(outcome?.['finish_reason']),
    usage: (outcome?.['usage'] ?? undefined) as TokenUsage | undefined,
    tokens,
  };
}

/** @param ids of the tool calls, where Hermes was told others than the server gave */
function replyOf(text: string, ids: unknown): ModelCall['reply'] {
  const reply = parseExact(text);
  const choices = isExactObject(reply) ? reply['choices'] : undefined;
  const choice = Array.isArray(choices) ? choices[0] : undefined;
  const message = isExactObject(choice) ? choice['message'] : undefined;
  if (!isExactObject(message)) return undefined;
  const tools = Array.isArray(message['tool_calls']) ? message['tool_calls'].filter(isExactObject).map(askedTool) : [];
  const told = Array.isArray(ids) ? ids.map(String) : [];
  return {
    content: contentOf(message['content']),
    reasoning: textOf(message['reasoning_content']) ?? textOf(message['reasoning']) ?? '',
    tools: tools.map((tool, index) => ({ ...tool, id: told[index] ?? tool.id })),
  };
}

function askedTool(call: ExactObject): AskedTool {
  const called = call['function'];
  const args = isExactObject(called) ? called['arguments'] : undefined;
  return {
    id: textOf(call['id']) ?? '',
    name: (isExactObject(called) ? textOf(called['name']) : undefined) ?? '',
    arguments: textOf(args) ?? (args === undefined ? '' : stringifyExact(args)),
  };
}

/** Text of a message's content: a string, or parts of which the texts count. */
export function contentOf(content: ExactObject[string] | undefined): string {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return '';
  return content.map((part) => (isExactObject(part) ? (textOf(part['text']) ?? '') : '')).join('');
}

/** Whole prompt ids again, out of what a call shares with the sequence of an earlier one; undefined when that is lost. */
function tokensOf(act: string, text: string, sequences: Map<string, number[]>): CallTokens | undefined {
  const stored = parseExact(text);
  const list = (value: ExactObject[string] | undefined): number[] | undefined =>
    Array.isArray(value) ? value.map((each) => numberOf(each) ?? Number.NaN) : undefined;
  if (!isExactObject(stored))
    return { promptIds: undefined, generationIds: undefined, logProbs: undefined, continues: undefined };
  const prompt = stored['prompt_token_ids'];
  const generationIds = list(stored['generation_token_ids']);
  let promptIds: number[] | undefined;
  if (isExactObject(prompt)) {
    const earlier = sequences.get(textOf(prompt['shared_with']) ?? '') ?? [];
    const shared = numberOf(prompt['shared']) ?? 0;
    if (earlier.length < shared) return undefined;
    promptIds = [...earlier.slice(0, shared), ...(list(prompt['rest']) ?? [])];
    sequences.set(act, [...promptIds, ...(generationIds ?? [])]);
  }
  const { continues } = stored;
  return {
    promptIds,
    generationIds,
    logProbs: list(stored['generation_log_probs']),
    continues: typeof continues === 'boolean' ? continues : undefined,
  };
}

/** Names of granted tools: Hermes' cleaned form, the old one with single underscores too, to `mcp__<server>__<tool>` as granted. */
export function grantedNames(events: readonly RecordedEvent[]): Map<string, string> {
  const names = new Map<string, string>();
  for (const { event } of events) {
    if (event['kind'] !== 'mcp_servers') continue;
    for (const [server, tools] of Object.entries(event['servers'] as Record<string, string[]>)) {
      for (const tool of tools) {
        const granted = `mcp__${server}__${tool}`;
        names.set(`mcp__${hermesServerName(server)}__${hermesServerName(tool)}`, granted);
        const old = `mcp_${hermesServerName(server)}_${hermesServerName(tool)}`;
        // `my_srv` + `x` and `my` + `srv_x` have one old name: it then tells nothing.
        names.set(old, names.has(old) ? old : granted);
      }
    }
  }
  return names;
}
