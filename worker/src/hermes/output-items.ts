import type { OutputItem } from '@hermes-fleet/shared';
import { isExactObject, parseExact, textOf } from '../capture/exact-json.ts';
import { wellFormed } from '../command.ts';
import {
  actsOf,
  type AskedTool,
  contentOf,
  grantedNames,
  isRootCall,
  type ModelCall,
  type Trajectory,
} from './trajectory.ts';

interface OpenCall {
  readonly asked: AskedTool;
  readonly by: ModelCall;
  readonly item: Extract<OutputItem, { type: 'function_call' }>;
  output: string | undefined;
  /** When the agent's next reply was asked for: what is recorded later belongs to later calls. */
  until?: number;
}

/**
 * Output items of the root agent, in order, once each: of every answered call its reasoning, its text and its tool calls,
 * each tool call followed by what the model was shown of it. Nothing is made up: a call whose output nobody recorded has none.
 */
export function outputItems(trajectory: Trajectory, idPrefix: string): OutputItem[] {
  const names = grantedNames(trajectory.events);
  const items: (OutputItem | OpenCall)[] = [];
  const calls: OpenCall[] = [];
  const usedIds = new Set<string>();
  const askedIds = new Set<string>();
  let open: OpenCall[] = [];
  for (const call of trajectory.calls) {
    if (!isRootCall(call)) continue;
    settle(open, call, { texts: trajectory.texts, askedIds });
    open = open.filter(({ output }) => output === undefined);
    if (call.reply === undefined) continue;
    const fresh = itemsOf(call, call.reply, { names, usedIds, idPrefix });
    attachTokens(
      call,
      fresh.map((entry) => ('asked' in entry ? entry.item : entry)),
    );
    items.push(...fresh);
    for (const each of open) each.until = call.begunAt;
    open = fresh.filter((entry) => 'asked' in entry);
    for (const { asked } of open) askedIds.add(asked.id);
    calls.push(...open);
  }
  for (const call of calls) call.output ??= recordedOutput(call, trajectory);
  return items.flatMap((entry) => ('asked' in entry ? pair(entry, idPrefix) : [entry]));
}

function itemsOf(
  call: ModelCall,
  reply: NonNullable<ModelCall['reply']>,
  context: { readonly names: ReadonlyMap<string, string>; readonly usedIds: Set<string>; readonly idPrefix: string },
): (OutputItem | OpenCall)[] {
  const { names, usedIds, idPrefix } = context;
  const id = (kind: string): string => `${kind}_${idPrefix}_${call.act}`;
  const items: (OutputItem | OpenCall)[] = [];
  if (reply.reasoning !== '')
    items.push({
      type: 'reasoning',
      id: id('rs'),
      summary: [{ type: 'summary_text', text: wellFormed(reply.reasoning) }],
    });
  if (reply.content !== '')
    items.push({
      type: 'message',
      id: id('msg'),
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text: wellFormed(reply.content), annotations: [] }],
    });
  for (const [index, asked] of reply.tools.entries()) {
    const callId = uniqueId(asked.id === '' ? `call_${call.act}_${index}` : asked.id, usedIds);
    items.push({
      asked,
      by: call,
      output: undefined,
      item: {
        type: 'function_call',
        id: `fc_${idPrefix}_${call.act}_${index}`,
        call_id: callId,
        name: names.get(asked.name) ?? asked.name,
        arguments: wellFormed(asked.arguments),
        status: 'completed',
      },
    });
  }
  return items;
}

function uniqueId(wanted: string, used: Set<string>): string {
  let id = wanted;
  for (let n = 2; used.has(id); n++) id = `${wanted}_${n}`;
  used.add(id);
  return id;
}

/**
 * Takes tool messages out of a later request: by id, and by order where an id is none that was asked for. A message of an
 * earlier call stands there too, when Hermes dropped the reply that came after it.
 */
function settle(
  open: readonly OpenCall[],
  call: ModelCall,
  { texts, askedIds }: { readonly texts: ReadonlyMap<string, string>; readonly askedIds: ReadonlySet<string> },
): void {
  if (open.length === 0) return;
  const outputs: { id: string; text: string }[] = [];
  for (const hash of call.messages.toReversed()) {
    const text = texts.get(hash);
    const message = text === undefined ? undefined : parseExact(text);
    if (!isExactObject(message)) continue;
    if (textOf(message['role']) === 'tool')
      outputs.unshift({ id: textOf(message['tool_call_id']) ?? '', text: contentOf(message['content']) });
    else if (textOf(message['role']) === 'assistant') break;
  }
  const unnamed = outputs.filter(({ id, text }) => {
    const target = open.find((each) => each.output === undefined && each.asked.id === id);
    if (target !== undefined) target.output = text;
    return target === undefined && !askedIds.has(id);
  });
  for (const { text } of unnamed) {
    const target = open.find((each) => each.output === undefined);
    if (target !== undefined) target.output = text;
  }
}

/** What the record has of a tool call that no later request shows: its run was cut after it. */
function recordedOutput(call: OpenCall, { toolActs, mcpActs, texts }: Trajectory): string | undefined {
  const acts = actsOf(call.asked, call.by, call.until, [...toolActs, ...mcpActs]);
  // What Hermes ran for a file tool is nothing that the model would have seen.
  const last = acts.findLast(({ intent, outcome }) => outcome !== undefined && intent['internal'] !== true);
  const hash = last?.outcome?.['output'] ?? last?.outcome?.['result'];
  const text = typeof hash === 'string' ? texts.get(hash) : undefined;
  if (text === undefined) return undefined;
  const value: unknown = JSON.parse(text);
  return typeof value === 'string' ? value : text;
}

function pair(call: OpenCall, idPrefix: string): OutputItem[] {
  if (call.output === undefined) return [{ ...call.item, status: 'incomplete' }];
  return [
    call.item,
    {
      type: 'function_call_output',
      id: `fco_${idPrefix}_${call.item.call_id}`,
      call_id: call.item.call_id,
      output: wellFormed(call.output),
      status: 'completed',
    },
  ];
}

/** Token ids of a call stand on its last item, as in Gym's training variants. */
function attachTokens(call: ModelCall, items: readonly OutputItem[]): void {
  const last = items.at(-1);
  if (last === undefined || last.type === 'function_call_output' || call.tokens === undefined) return;
  const { promptIds, generationIds, logProbs } = call.tokens;
  if (promptIds !== undefined) last.prompt_token_ids = promptIds;
  if (generationIds !== undefined) last.generation_token_ids = generationIds;
  if (logProbs !== undefined) last.generation_log_probs = logProbs;
}
