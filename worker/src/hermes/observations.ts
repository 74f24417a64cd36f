import type { ObservationBundle, ObservationGap, ObservationRecord } from '@hermes-fleet/shared';
import type { RecordedAct } from '../capture/journal.ts';
import type { Who } from '../capture/model-calls.ts';
import type { SandboxUsage } from '../sandbox/provider.ts';
import { actsOf, contentOf, type ModelCall, type Trajectory } from './trajectory.ts';
import { isExactObject, parseExact, textOf } from '../capture/exact-json.ts';

/** Name of Gym's Model Server block that the calls belong to; Gym joins them by response id. */
const MODEL_REF = { type: 'responses_api_models', name: 'policy_model' } as const;
const SOURCE = 'hermes-fleet';

export interface ObservedActivation {
  readonly id: string;
  readonly trajectory: Trajectory;
}

export interface ObservedSandbox {
  readonly provider: string;
  readonly id: string;
  readonly outcome: 'completed' | 'failed' | 'timeout' | 'oom' | 'sandbox_error' | 'cancelled' | 'unknown';
  readonly wallTimeS: number | undefined;
  readonly usage: SandboxUsage | undefined;
}

/** Everything recorded of a session, in Gym's form. */
export function observationBundle(
  activations: readonly ObservedActivation[],
  sandbox: ObservedSandbox | undefined,
): ObservationBundle {
  const records: ObservationRecord[] = [];
  const gaps: ObservationGap[] = [];
  for (const activation of activations) {
    records.push(...invocations(activation), ...toolCalls(activation, sandbox?.id), ...compactions(activation));
    gaps.push(...activation.trajectory.gaps);
    for (const call of activation.trajectory.calls)
      if (call.endedAt === undefined)
        gaps.push({
          code: 'model_calls_unavailable',
          invocation_id: invocationId(activation.id, call.who),
          detail: `what came of call ${call.act} is not known`,
        });
  }
  if (sandbox === undefined) gaps.push({ code: 'sandbox_observation_unavailable' });
  else records.push(sandboxRecord(sandbox));
  return { source: SOURCE, records, gaps };
}

const invocationId = (activation: string, who: Who | { readonly agent: string | null }): string =>
  `${activation}:${who.agent ?? 'unknown'}`;

function invocations({ id, trajectory }: ObservedActivation): ObservationRecord[] {
  const agents = new Map<string, ModelCall[]>();
  for (const call of trajectory.calls) {
    const agent = call.who.agent ?? 'unknown';
    agents.set(agent, [...(agents.get(agent) ?? []), call]);
  }
  const order = [...agents.keys()];
  return [...agents].map(([agent, calls]) => {
    const who = calls[0]?.who;
    const ended = trajectory.events.find(
      ({ event }) => event['kind'] === 'agent_end' && (event['who'] as Who | undefined)?.agent === agent,
    );
    const conversation = conversationOf(calls, trajectory.texts);
    const status = ended?.event['status'];
    const first = calls[0]?.begunAt ?? 0;
    const last = calls.at(-1)?.endedAt;
    // A parent speaks before its children do; anything else could be a circle, which Gym refuses.
    const isParentKnown =
      who?.parent != null && order.indexOf(who.parent) < order.indexOf(agent) && agents.has(who.parent);
    return {
      kind: 'agent_invocation',
      invocation_id: invocationId(id, { agent }),
      parent_invocation_id: isParentKnown ? invocationId(id, { agent: who.parent }) : null,
      spawned_by_tool_call_id: who?.spawned_by ?? null,
      status: status === 'completed' || status === 'failed' || status === 'incomplete' ? status : 'unknown',
      duration_ms: last === undefined ? null : last - first,
      model_calls: calls.flatMap(({ responseId }) =>
        responseId === undefined ? [] : [{ model_ref: MODEL_REF, response_id: responseId }],
      ),
      ...(conversation === undefined ? {} : { conversation }),
    };
  });
}

/**
 * Conversation of an agent: the messages of its last call, which hold what its tools said, and the reply where there is
 * one; undefined when nothing was answered.
 */
function conversationOf(
  calls: readonly ModelCall[],
  texts: ReadonlyMap<string, string>,
): { [key: string]: never }[] | undefined {
  if (!calls.some(({ reply }) => reply !== undefined)) return undefined;
  const last = calls.at(-1);
  if (last === undefined) return undefined;
  const items: object[] = [];
  for (const hash of last.messages) {
    const text = texts.get(hash);
    const message = text === undefined ? undefined : parseExact(text);
    if (!isExactObject(message)) continue;
    const role = textOf(message['role']);
    const content = contentOf(message['content']);
    if (role === 'tool')
      items.push({ type: 'function_call_output', call_id: textOf(message['tool_call_id']) ?? '', output: content });
    else if (role !== undefined) {
      if (content !== '' || role !== 'assistant') items.push({ type: 'message', role, content });
      const asked = message['tool_calls'];
      for (const call of Array.isArray(asked) ? asked : [])
        if (isExactObject(call)) items.push(functionCall(textOf(call['id']) ?? '', call['function']));
    }
  }
  if (last.reply !== undefined) {
    if (last.reply.content !== '') items.push({ type: 'message', role: 'assistant', content: last.reply.content });
    for (const tool of last.reply.tools)
      items.push({ type: 'function_call', call_id: tool.id, name: tool.name, arguments: tool.arguments });
  }
  return items as { [key: string]: never }[];
}

function functionCall(callId: string, called: ReturnType<typeof parseExact> | undefined): object {
  const name = isExactObject(called) ? textOf(called['name']) : undefined;
  const args = isExactObject(called) ? textOf(called['arguments']) : undefined;
  return { type: 'function_call', call_id: callId, name: name ?? '', arguments: args ?? '' };
}

/** One record per tool call of the model; what Hermes ran for it gives the times. */
function toolCalls({ id, trajectory }: ObservedActivation, sandboxId: string | undefined): ObservationRecord[] {
  const acts = [...trajectory.toolActs, ...trajectory.mcpActs];
  return trajectory.calls.flatMap((call, index) =>
    (call.reply?.tools ?? []).map((asked): ObservationRecord => {
      const next = trajectory.calls.find(
        (each, at) => at > index && each.reply !== undefined && each.who.agent === call.who.agent,
      );
      const own = actsOf(asked, call, next?.begunAt, acts);
      const begun = own[0]?.begunAt;
      const ended = own.at(-1)?.endedAt;
      return {
        kind: 'tool_call',
        invocation_id: invocationId(id, call.who),
        tool_call_id: asked.id,
        sandbox_id: own.some(({ kind }) => kind === 'tool') ? (sandboxId ?? null) : null,
        tool_name: asked.name,
        started_at: begun === undefined ? null : begun / 1000,
        completed_at: ended === undefined ? null : ended / 1000,
        duration_ms: begun === undefined || ended === undefined ? null : ended - begun,
        timing_source: own.length === 0 ? null : 'harness',
        status: statusOf(own),
      };
    }),
  );
}

function statusOf(
  acts: readonly RecordedAct[],
): 'completed' | 'failed' | 'timeout' | 'cancelled' | 'incomplete' | 'unknown' {
  const last = acts.at(-1);
  if (last === undefined) return 'unknown';
  if (last.outcome === undefined) return 'incomplete';
  const { status, is_error: isError, is_cancelled: isCancelled } = last.outcome;
  if (status === 'timeout') return 'timeout';
  if (status === 'cancel' || isCancelled === true) return 'cancelled';
  return status === 'lost' || isError === true ? 'failed' : 'completed';
}

function compactions({ id, trajectory }: ObservedActivation): ObservationRecord[] {
  return trajectory.events
    .filter(({ event }) => event['kind'] === 'compaction' && event['who'] !== undefined)
    .map(({ event, at }) => ({
      kind: 'context_compaction' as const,
      invocation_id: invocationId(id, event['who'] as Who),
      observed_at: at / 1000,
      outcome: 'completed' as const,
    }));
}

function sandboxRecord(sandbox: ObservedSandbox): ObservationRecord {
  const { usage } = sandbox;
  return {
    kind: 'sandbox',
    role: 'agent',
    provider: sandbox.provider,
    sandbox_id: sandbox.id,
    outcome: sandbox.outcome,
    wall_time_s: sandbox.wallTimeS ?? null,
    cpu_time_s: usage?.cpuTimeS ?? null,
    peak_memory_mib: usage?.peakMemoryMib ?? null,
    resource_usage_source: usage === undefined ? null : 'engine',
  };
}
