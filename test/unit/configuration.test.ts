import { parseActivate, parseSeed } from '@hermes-fleet/shared';
import { expect, test } from 'vitest';
import { conversationOf } from '@hermes-fleet/worker/hermes/configuration';
import { seedBody } from '../setup/seed.ts';
import { verifies } from '../setup/verifies.ts';

const conversation = (request: object, hermes: object = {}) =>
  conversationOf(
    parseSeed(seedBody({ hermes })),
    parseActivate({ session_id: 's', activation_id: 'a', request }).request,
  );
const user = (content: unknown) => ({ role: 'user', content });
const reasoning = (text: string) => ({ type: 'reasoning', summary: [{ type: 'summary_text', text }] });
const called = (id: string) => ({ type: 'function_call', call_id: id, name: 'f', arguments: '{}' });
const output = (id: string, text: string) => ({ type: 'function_call_output', call_id: id, output: text });
const toolCall = (id: string) => ({ id, type: 'function', function: { name: 'f', arguments: '{}' } });

verifies('hermes:prompt', 'session prompt, instructions and the first system item are joined in that order', () => {
  const request = {
    instructions: 'two',
    input: [user('hi'), { role: 'system', content: 'three' }, { role: 'system', content: 'stays' }, user('go')],
  };
  expect(conversation(request, { system_prompt: 'one' })).toEqual({
    system: 'one\n\ntwo\n\nthree',
    history: [user('hi'), { role: 'system', content: 'stays' }],
    user: 'go',
  });
  expect(conversation({ input: 'go' })).toEqual({ system: undefined, history: [], user: 'go' });
  expect(conversation({ input: 'go', instructions: '' }, { system_prompt: '' }).system).toBeUndefined();
});

verifies(
  ['hermes:reasoning', 'hermes:prompt'],
  'reasoning and tool calls join the assistant message that they belong to',
  () => {
    const input = [
      user('a'),
      reasoning('r1'),
      { role: 'assistant', content: 'looking' },
      called('1'),
      called('2'),
      output('1', 'x'),
      output('2', 'y'),
      reasoning('r2'),
      called('3'),
      output('3', 'z'),
      { role: 'assistant', content: 'done' },
      user('b'),
    ];
    expect(conversation({ input }).history).toEqual([
      user('a'),
      { role: 'assistant', content: 'looking', reasoning_content: 'r1', tool_calls: [toolCall('1'), toolCall('2')] },
      { role: 'tool', tool_call_id: '1', content: 'x' },
      { role: 'tool', tool_call_id: '2', content: 'y' },
      { role: 'assistant', content: null, reasoning_content: 'r2', tool_calls: [toolCall('3')] },
      { role: 'tool', tool_call_id: '3', content: 'z' },
      { role: 'assistant', content: 'done' },
    ]);
  },
);

verifies('hermes:reasoning', 'reasoning that nothing followed is not given to a later message', () => {
  const input = [
    user('a'),
    reasoning('lost'),
    user('b'),
    { role: 'assistant', content: 'x' },
    reasoning('last'),
    user('c'),
  ];
  expect(conversation({ input }).history).toEqual([
    user('a'),
    { role: 'assistant', content: '', reasoning_content: 'lost' },
    user('b'),
    { role: 'assistant', content: 'x' },
    { role: 'assistant', content: '', reasoning_content: 'last' },
  ]);
});

test('parts of a text are joined, and halves of surrogate pairs replaced', () => {
  const parts = [
    { type: 'input_text', text: 'a\uD83D' },
    { type: 'input_text', text: 'b' },
  ];
  expect(conversation({ input: [user(parts)] }).user).toBe('a\uFFFDb');
});
