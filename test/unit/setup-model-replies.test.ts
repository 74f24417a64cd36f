import { expect, test } from 'vitest';
import { callTool, type ChatMessage, say, sequence, textOf, turnOf, turns } from '../setup/model-replies.ts';
import { weatherScript } from '../setup/model-scripts.ts';
import { tokenFields } from '../setup/model-tokens.ts';

const user: ChatMessage = { role: 'user', content: 'What is the weather in Oslo?' };
const asked = (...messages: readonly ChatMessage[]) => ({
  model: 'm',
  messages,
  tools: [{ function: { name: 'mcp__w__get_weather' } }],
});

test('a sequence gives its replies in order, and one too many is refused', () => {
  const script = sequence([say('a'), say('b')]);
  expect(script(asked(user), 0)).toMatchObject({ message: { content: 'a' } });
  expect(script(asked(user), 1)).toMatchObject({ message: { content: 'b' } });
  expect(script(asked(user), 2)).toMatchObject({ kind: 'raw', status: 400 });
});

test('turns give a repeated request the same reply', () => {
  const script = turns([callTool('t', {}, 'c1'), say('done')]);
  const second = asked(user, { role: 'assistant', content: null }, { role: 'tool', content: 'x' });
  expect(turnOf(second)).toBe(1);
  expect(script(asked(user), 0)).toMatchObject({ finishReason: 'tool_calls' });
  expect(script(second, 1)).toMatchObject({ message: { content: 'done' } });
  expect(script(second, 2)).toMatchObject({ message: { content: 'done' } });
});

test('text is read from both forms of content', () => {
  expect(textOf({ role: 'user', content: [{ type: 'text', text: 'a' }, { type: 'image_url' }] })).toBe('a');
  expect(textOf(undefined)).toBe('');
});

test('the weather script asks for the city of the task and answers with the sentence of the tool', () => {
  expect(weatherScript(asked(user), 0)).toMatchObject({
    message: { tool_calls: [{ function: { name: 'mcp__w__get_weather', arguments: '{"city":"Oslo"}' } }] },
  });
  const tool = { role: 'tool', content: '{"result": "The weather in Oslo is foggy, 3 degrees (station 7)."}' };
  expect(weatherScript(asked(user, { role: 'assistant' }, tool), 1)).toMatchObject({
    message: { content: 'The weather in Oslo is foggy, 3 degrees (station 7).' },
  });
});

test('the prompt of the next call begins with the tokens of the last prompt and its generation', () => {
  const answer: ChatMessage = { role: 'assistant', content: 'I shall look.' };
  const first = tokenFields([user], answer);
  const next = tokenFields([user, answer, { role: 'user', content: 'and?' }], { role: 'assistant', content: 'x' });
  const seen = [...first.prompt_token_ids, ...first.generation_token_ids];
  expect(next.prompt_token_ids.slice(0, seen.length)).toEqual(seen);
  expect(first.generation_log_probs).toHaveLength(first.generation_token_ids.length);
});
