import { parseExact, isExactObject, type ExactObject } from '@hermes-fleet/worker/capture/exact-json';
import { separateToolIds } from '@hermes-fleet/worker/capture/tool-ids';
import { expect, test } from 'vitest';

const asking = (...ids: readonly (string | undefined)[]): ExactObject => {
  const message = parseExact(
    JSON.stringify({
      role: 'assistant',
      tool_calls: ids.map((id) => ({ id, function: { name: 'f', arguments: '{}' } })),
    }),
  );
  if (!isExactObject(message)) throw new Error('no object');
  return message;
};

const idsIn = (message: ExactObject): unknown => (message['tool_calls'] as ExactObject[]).map((call) => call['id']);

test('ids that are told apart stay as the server gave them', () => {
  const message = asking('a', 'b');
  expect(separateToolIds('7', { messages: [asking('c')] }, message)).toBeUndefined();
  expect(idsIn(message)).toEqual(['a', 'b']);
});

test('an id that comes twice, came before, or is missing becomes one of its own', () => {
  const message = asking('call_0', 'call_0', undefined, '', 'call_0_2');
  expect(separateToolIds('7', { messages: [asking('call_0')] }, message)).toEqual([
    'call_0_2',
    'call_0_3',
    'call_7_2',
    'call_7_3',
    'call_0_2_2',
  ]);
  expect(idsIn(message)).toEqual(['call_0_2', 'call_0_3', 'call_7_2', 'call_7_3', 'call_0_2_2']);
});

test('a reply without tool calls is left alone', () => {
  expect(separateToolIds('7', {}, parseExact('{"role":"assistant","content":"x","tool_calls":null}'))).toBeUndefined();
  expect(separateToolIds('7', {}, undefined)).toBeUndefined();
});
