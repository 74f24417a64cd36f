import { FleetError, reasonOf } from '@hermes-fleet/shared';
import {
  type ExactObject,
  type ExactValue,
  isExactObject,
  numberOf,
  parseExact,
  stringifyExact,
} from './exact-json.ts';
import { type EndpointReply, TryFailure } from './model-endpoint.ts';

export function firstChoice(reply: ExactObject): ExactObject | undefined {
  const choices = reply['choices'];
  const first = Array.isArray(choices) ? choices[0] : undefined;
  return isExactObject(first) ? first : undefined;
}

/** A 200 that is a chat completion. @throws TryFailure `infra/model_bad_reply` */
export function completionOf(url: string, reply: EndpointReply): ExactObject {
  const bad = (why: string): TryFailure =>
    new TryFailure(
      new FleetError(
        'infra/model_bad_reply',
        `${url} answered ${reply.status} with ${why}: ${reply.text.slice(0, 200)}`,
      ),
      { reply: { ...reply, status: 502 }, isRetryable: true },
    );
  let parsed: ExactValue;
  try {
    parsed = parseExact(reply.text);
  } catch (error) {
    throw bad(reply.text.trim() === '' ? 'an empty body' : `a body that is not JSON (${reasonOf(error)})`);
  }
  if (!isExactObject(parsed) || !isExactObject(firstChoice(parsed)?.['message']))
    throw bad('no choice that holds a message');
  if (!hasWholeTools(firstChoice(parsed)?.['message'])) throw bad('a tool call that names no function');
  return parsed;
}

/** Hermes would crash over a call without a function, and the policy be blamed for it. */
function hasWholeTools(message: ExactValue | undefined): boolean {
  const calls = isExactObject(message) ? message['tool_calls'] : undefined;
  if (!Array.isArray(calls)) return true;
  return calls.every(
    (call) => isExactObject(call) && isExactObject(call['function']) && typeof call['function']['name'] === 'string',
  );
}

/** What a 4xx means once Hermes could not go on after it. */
export function clientFailure(url: string, reply: EndpointReply): FleetError {
  const said = reply.text.slice(0, 2048);
  if (/context.{0,20}(length|window|size)|maximum context|too many tokens|prompt is too long/i.test(said))
    return new FleetError('failed/context_exceeded', `the model's context is exceeded: ${said}`);
  return new FleetError('infra/model_bad_reply', `${url} answered ${reply.status}: ${said}`);
}

/** Tokens of what has no count: about one for each four bytes of its JSON. */
export const estimatedTokens = (value: ExactValue | undefined): number =>
  value === undefined ? 0 : Math.ceil(Buffer.byteLength(stringifyExact(value)) / 4);

/** A server that counts backwards must not lengthen a budget. */
const tokenCount = (value: ExactValue | undefined): number => Math.max(0, Math.trunc(numberOf(value) ?? 0) || 0);

export function usageOf(
  reply: ExactObject,
): { input: number; output: number; cached: number; reasoning: number } | undefined {
  const usage = reply['usage'];
  if (!isExactObject(usage)) return undefined;
  const detail = (part: string, name: string): number => {
    const details = usage[part];
    return isExactObject(details) ? tokenCount(details[name]) : 0;
  };
  return {
    input: tokenCount(usage['prompt_tokens']),
    output: tokenCount(usage['completion_tokens']),
    cached: detail('prompt_tokens_details', 'cached_tokens'),
    reasoning: detail('completion_tokens_details', 'reasoning_tokens'),
  };
}
