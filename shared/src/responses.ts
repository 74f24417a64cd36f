import { z } from 'zod';

const TextPart = z.strictObject({
  type: z.enum(['input_text', 'output_text', 'text']),
  text: z.string(),
  annotations: z.array(z.json()).optional(),
  logprobs: z.json().optional(),
});
const Text = z.union([z.string(), z.array(TextPart)]);

const status = z.enum(['in_progress', 'completed', 'incomplete']).optional();
/** Token ids and log-probs of the call that made an item, in the field names of Gym's training variants. */
const training = {
  prompt_token_ids: z.array(z.number().int()).optional(),
  generation_token_ids: z.array(z.number().int()).optional(),
  generation_log_probs: z.array(z.number()).optional(),
};

/** One item of a conversation that is handed in: messages of text, and what an earlier response put out. */
export const InputItem = z.union([
  z.strictObject({
    type: z.literal('message').optional(),
    id: z.string().optional(),
    status,
    role: z.enum(['user', 'assistant', 'system']),
    content: Text,
    ...training,
  }),
  z.strictObject({
    type: z.literal('function_call'),
    id: z.string().optional(),
    status,
    call_id: z.string(),
    name: z.string(),
    arguments: z.string(),
    ...training,
  }),
  z.strictObject({
    type: z.literal('function_call_output'),
    id: z.string().optional(),
    status,
    call_id: z.string(),
    output: Text,
  }),
  z.strictObject({
    type: z.literal('reasoning'),
    id: z.string().optional(),
    status,
    summary: z.array(z.strictObject({ type: z.literal('summary_text'), text: z.string() })),
    content: z.array(z.strictObject({ type: z.string(), text: z.string() })).optional(),
    encrypted_content: z.null().optional(),
    ...training,
  }),
]);
export type InputItem = z.infer<typeof InputItem>;

const onlyDefault = <T extends z.ZodType>(schema: T, what: string) =>
  schema.optional().meta({ description: `${what}; anything else is refused` });
const nothing = (name: string) =>
  onlyDefault(z.null({ error: `${name} is not supported by Hermes: leave it out` }), 'null');

/**
 * Body of an OpenAI Responses create call, as far as Hermes can honour it. What it cannot is accepted at its default only,
 * and otherwise refused by name; unknown fields are refused.
 *
 * @see nemo-gym 0.7.0 `NeMoGymResponseCreateParamsNonStreaming`
 */
export const ResponsesRequest = z
  .strictObject({
    /** A text, or a history of which the last item is the user's. */
    input: z.union([z.string(), z.array(InputItem).min(1, 'must have at least one item')]),
    instructions: z.string().nullish(),
    /** Must equal the session's. */
    model: z.string().nullish(),
    temperature: z.number().min(0).nullish(),
    top_p: z.number().min(0).max(1).nullish(),
    /** A budget of this activation, over all its calls. */
    max_output_tokens: z.number().int().min(1).nullish(),
    metadata: z.record(z.string(), z.string()).nullish(),
    tools: onlyDefault(
      z.array(z.never({ error: 'tools are granted at seed (tool_accesses), not in the request' })),
      'an empty list',
    ),
    tool_choice: onlyDefault(z.literal('auto', { error: 'only "auto" is supported' }), '"auto"'),
    parallel_tool_calls: onlyDefault(z.literal(true, { error: 'only true is supported' }), 'true'),
    stream: onlyDefault(z.literal(false, { error: 'responses are whole: stream must be false' }).or(z.null()), 'false'),
    store: onlyDefault(z.boolean().or(z.null()), 'has no meaning here'),
    background: onlyDefault(z.literal(false, { error: 'only false is supported' }).or(z.null()), 'false'),
    include: onlyDefault(z.array(z.never({ error: 'include is not supported' })).or(z.null()), 'an empty list'),
    truncation: onlyDefault(
      z.literal('disabled', { error: 'only "disabled" is supported' }).or(z.null()),
      '"disabled"',
    ),
    service_tier: onlyDefault(z.literal('auto', { error: 'only "auto" is supported' }).or(z.null()), '"auto"'),
    max_tool_calls: nothing('max_tool_calls'),
    previous_response_id: nothing('previous_response_id'),
    prompt: nothing('prompt'),
    reasoning: nothing('reasoning'),
    text: nothing('text'),
    top_logprobs: nothing('top_logprobs'),
    context_management: nothing('context_management'),
    conversation: nothing('conversation'),
    moderation: nothing('moderation'),
    prompt_cache_key: nothing('prompt_cache_key'),
    prompt_cache_retention: nothing('prompt_cache_retention'),
    safety_identifier: nothing('safety_identifier'),
    stream_options: nothing('stream_options'),
    user: nothing('user'),
  })
  .check((context) => {
    const { input } = context.value;
    if (typeof input === 'string') {
      if (input === '') context.issues.push({ code: 'custom', input, path: ['input'], message: 'must not be empty' });
      return;
    }
    const last = input.at(-1);
    if (last !== undefined && !('role' in last && last.role === 'user')) {
      context.issues.push({
        code: 'custom',
        input,
        path: ['input', input.length - 1],
        message: 'the last item must be a message of the user',
      });
    }
  });
export type ResponsesRequest = z.infer<typeof ResponsesRequest>;

const itemStatus = z.enum(['in_progress', 'completed', 'incomplete']);

export const OutputItem = z.discriminatedUnion('type', [
  z.object({
    type: z.literal('message'),
    id: z.string(),
    role: z.literal('assistant'),
    status: itemStatus,
    content: z.array(z.object({ type: z.literal('output_text'), text: z.string(), annotations: z.array(z.json()) })),
    ...training,
  }),
  z.object({
    type: z.literal('function_call'),
    id: z.string(),
    call_id: z.string(),
    name: z.string(),
    arguments: z.string(),
    status: itemStatus,
    ...training,
  }),
  z.object({
    type: z.literal('function_call_output'),
    id: z.string(),
    call_id: z.string(),
    output: z.string(),
    status: itemStatus,
  }),
  z.object({
    type: z.literal('reasoning'),
    id: z.string(),
    summary: z.array(z.object({ type: z.literal('summary_text'), text: z.string() })),
    ...training,
  }),
]);
export type OutputItem = z.infer<typeof OutputItem>;

/** Tokens as the Model Server counted them; the sum of calls. */
export const ResponsesUsage = z.object({
  input_tokens: z.number().int(),
  input_tokens_details: z.object({ cached_tokens: z.number().int() }),
  output_tokens: z.number().int(),
  output_tokens_details: z.object({ reasoning_tokens: z.number().int() }),
  total_tokens: z.number().int(),
});
export type ResponsesUsage = z.infer<typeof ResponsesUsage>;

/** An OpenAI Responses object, built from the worker's record of the activation and never from what the sandbox says. */
export const ResponsesObject = z.object({
  id: z.string(),
  object: z.literal('response'),
  /** Seconds since the epoch. */
  created_at: z.number(),
  model: z.string(),
  status: z.enum(['completed', 'incomplete', 'failed', 'cancelled']),
  output: z.array(OutputItem),
  /** Calls of the root agent. Those of children and auxiliary clients are in the envelope's `usage`. */
  usage: ResponsesUsage,
  incomplete_details: z.object({ reason: z.string() }).nullable(),
  error: z.object({ code: z.string(), message: z.string() }).nullable(),
  instructions: z.string().nullable(),
  metadata: z.record(z.string(), z.string()),
  parallel_tool_calls: z.literal(true),
  tool_choice: z.literal('auto'),
  tools: z.array(z.json()),
});
export type ResponsesObject = z.infer<typeof ResponsesObject>;
