import { FleetError, parseActivate } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { verifies } from '../setup/verifies.ts';

const user = { role: 'user', content: 'hello' };
const parse = (request: unknown) => parseActivate({ session_id: 's', activation_id: 'a', request }).request;

function refusal(request: unknown): string {
  try {
    parse(request);
  } catch (error) {
    if (error instanceof FleetError) return `${error.code}: ${error.message}`;
    throw error;
  }
  return 'accepted';
}
const sentence = (text: string): string => `refused/invalid: activate is not valid: request.${text}`;

/** Every field of `NeMoGymResponseCreateParamsNonStreaming` of nemo-gym 0.7.0 that Hermes cannot honour: its defaults, and another value. */
const UNSUPPORTED: Readonly<Record<string, readonly [defaults: readonly unknown[], other: unknown]>> = {
  tools: [[[]], [{ type: 'function', name: 'f' }]],
  tool_choice: [['auto'], 'required'],
  parallel_tool_calls: [[true], false],
  stream: [[false, null], true],
  background: [[false, null], true],
  include: [[[], null], ['reasoning.encrypted_content']],
  truncation: [['disabled', null], 'auto'],
  service_tier: [['auto', null], 'flex'],
  max_tool_calls: [[null], 3],
  previous_response_id: [[null], 'resp_1'],
  prompt: [[null], { id: 'p' }],
  reasoning: [[null], { effort: 'high' }],
  text: [[null], { format: { type: 'json_object' } }],
  top_logprobs: [[null], 5],
  context_management: [[null], [{ type: 'compaction' }]],
  conversation: [[null], 'conv_1'],
  moderation: [[null], {}],
  prompt_cache_key: [[null], 'k'],
  prompt_cache_retention: [[null], '24h'],
  safety_identifier: [[null], 'u'],
  stream_options: [[null], {}],
  user: [[null], 'u'],
};

verifies(
  'hermes:refuse-unsupported',
  'what Hermes cannot honour is accepted at its default and refused otherwise, by name',
  () => {
    for (const [name, [defaults, other]] of Object.entries(UNSUPPORTED)) {
      for (const value of defaults) expect(refusal({ input: 'x', [name]: value })).toBe('accepted');
      for (const value of [other, 12.5, { a: 1 }])
        expect(refusal({ input: 'x', [name]: value })).toMatch(new RegExp(`^${sentence(name)}(\\.0)?: \\S`));
      expect(refusal({ input: 'x', [name]: other })).not.toContain('Invalid input');
    }
  },
);

verifies('hermes:refuse-unsupported', 'a field that no version knows yet is refused by name', () => {
  expect(refusal({ input: 'x', future_field: null })).toBe(sentence('future_field: is not a known field'));
  expect(refusal({ input: [{ ...user, cache_control: {} }] })).toBe(
    sentence('input.0.cache_control: is not a known field'),
  );
});

test('what Hermes honours is kept as it was given', () => {
  const request = {
    input: [user],
    instructions: 'be brief',
    model: 'm',
    temperature: 0,
    top_p: 1,
    max_output_tokens: 64,
    metadata: { note: 'x' },
    store: true,
  };
  expect(parse(request)).toEqual(request);
  const absent = {
    instructions: null,
    model: null,
    temperature: null,
    top_p: null,
    max_output_tokens: null,
    metadata: null,
  };
  expect(parse({ input: 'x', ...absent })).toEqual({ input: 'x', ...absent });
});

test('a history of everything that an earlier response put out is accepted', () => {
  const training = { prompt_token_ids: [1], generation_token_ids: [2], generation_log_probs: [-0.5] };
  const summary = [{ type: 'summary_text', text: 'hm' }];
  const input = [
    { role: 'system', content: 'be kind' },
    {
      type: 'message',
      role: 'user',
      content: [
        { type: 'input_text', text: 'one' },
        { type: 'input_text', text: 'two' },
      ],
    },
    { type: 'reasoning', id: 'rs_1', summary, ...training },
    {
      type: 'message',
      id: 'msg_1',
      role: 'assistant',
      status: 'completed',
      content: [{ type: 'output_text', text: 'looking', annotations: [] }],
    },
    { type: 'function_call', id: 'fc_1', call_id: 'c', name: 'f', arguments: '{', status: 'incomplete', ...training },
    { type: 'function_call_output', id: 'fco_1', call_id: 'c', output: 'x', status: 'completed' },
    user,
  ];
  expect(parse({ input }).input).toEqual(input);
});

test.each([
  [[], 'input: must have at least one item'],
  ['', 'input: must not be empty'],
  [7, 'input: expected string or array'],
  [[user, { role: 'assistant', content: 'x' }], 'input.1: the last item must be a message of the user'],
  [
    [user, { type: 'function_call_output', call_id: 'c', output: 'x' }],
    'input.1: the last item must be a message of the user',
  ],
  [[{ role: 'system', content: 'x' }], 'input.0: the last item must be a message of the user'],
  [[{ role: 'developer', content: 'x' }, user], 'input.0.role: expected one of "user"|"assistant"|"system"'],
  [[{ role: 'tool', content: 'x' }, user], 'input.0.role: expected one of "user"|"assistant"|"system"'],
  [
    [{ role: 'user', content: [{ type: 'input_image', image_url: 'x' }] }],
    'input.0.content.0.type: expected one of "input_text"|"output_text"|"text"',
  ],
  [[{ role: 'user' }], 'input.0.content: expected string or array'],
  [[{ role: 'user', content: null }], 'input.0.content: expected string or array'],
  [
    [{ type: 'computer_call', id: 'x' }, user],
    'input.0.type: expected one of "message", "function_call", "function_call_output", "reasoning"',
  ],
  [
    [{ type: 'function_call', call_id: 'c', name: 'f', arguments: {} }, user],
    'input.0.arguments: expected string, received object',
  ],
  [[{ type: 'function_call_output', output: 'x' }, user], 'input.0.call_id: expected string, received undefined'],
  [[{ type: 'reasoning', summary: [], encrypted_content: 'x' }, user], 'input.0.encrypted_content: expected null'],
  [['x'], 'input.0: expected object'],
])('input %j is refused, naming the item', (input, text) => {
  expect(refusal({ input })).toContain(sentence(text));
});

test.each([
  [{ temperature: -0.1 }, 'temperature: expected number to be >=0'],
  [{ temperature: '1' }, 'temperature: expected number, received string'],
  [{ top_p: 2 }, 'top_p: expected number to be <=1'],
  [{ max_output_tokens: 0 }, 'max_output_tokens: expected number to be >=1'],
  [{ max_output_tokens: 1.5 }, 'max_output_tokens: expected int'],
  [{ metadata: { a: 1 } }, 'metadata.a: expected string, received number'],
  [{ store: 'yes' }, 'store: expected boolean or null'],
])('%j is refused, naming the bound', (change, text) => {
  expect(refusal({ input: 'x', ...change })).toContain(sentence(text));
});
