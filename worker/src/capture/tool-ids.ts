import { type ExactObject, type ExactValue, isExactObject, textOf } from './exact-json.ts';

/**
 * Gives every tool call of a reply an id of its own, in place. Some servers call each one `call_0`, or nothing; Hermes
 * drops calls and outputs whose id it has seen before, and the model would never learn what its command said.
 *
 * @returns the ids as they now are; undefined when the server's own could stay
 * @see hermes-agent 0.19.0 agent/agent_runtime_helpers.py `sanitize_api_messages`
 */
export function separateToolIds(
  act: string,
  request: ExactObject,
  message: ExactValue | undefined,
): string[] | undefined {
  const asked = toolCallsOf(message);
  const used = new Set(messagesOf(request).flatMap((earlier) => toolCallsOf(earlier).map(idOf)));
  let isChanged = false;
  const ids = asked.map((call, index) => {
    const own = idOf(call);
    const wanted = own === '' ? `call_${act}_${index}` : own;
    let id = wanted;
    for (let n = 2; used.has(id); n++) id = `${wanted}_${n}`;
    used.add(id);
    if (id !== own) {
      isChanged = true;
      call['id'] = id;
    }
    return id;
  });
  return isChanged ? ids : undefined;
}

function messagesOf(request: ExactObject): ExactValue[] {
  return Array.isArray(request['messages']) ? request['messages'] : [];
}

function toolCallsOf(message: ExactValue | undefined): ExactObject[] {
  const calls = isExactObject(message) ? message['tool_calls'] : undefined;
  return Array.isArray(calls) ? calls.filter(isExactObject) : [];
}

/** As Hermes compares them. */
const idOf = (call: ExactObject): string => (textOf(call['id']) ?? '').trim();
