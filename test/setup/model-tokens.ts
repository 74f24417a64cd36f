import type { ChatMessage } from './model-replies.ts';

const VOCABULARY = 150_000;
const BEGIN_ASSISTANT = 1;
const BEGIN_OTHER = 2;
const END = 3;

/** Four characters make a token; the same ones always the same token. */
function encode(text: string): number[] {
  const tokens: number[] = [];
  for (let start = 0; start < text.length; start += 4) {
    let hash = 7;
    for (const character of text.slice(start, start + 4))
      hash = (hash * 31 + (character.codePointAt(0) ?? 0)) % VOCABULARY;
    tokens.push(hash + END + 1);
  }
  return tokens;
}

const spoken = (message: ChatMessage): string => {
  const calls = (message.tool_calls ?? []).map((call) => `${call.function.name}${call.function.arguments}`);
  return `${message.reasoning_content ?? ''}${typeof message.content === 'string' ? message.content : JSON.stringify(message.content ?? '')}${calls.join('')}`;
};

/**
 * Token fields as the training Model Server puts them on an assistant message. Like a real template's, the prompt of a
 * call is a prefix of the next one's, with what was generated in between.
 */
export function tokenFields(
  messages: readonly ChatMessage[],
  answer: ChatMessage,
): { prompt_token_ids: number[]; generation_token_ids: number[]; generation_log_probs: number[] } {
  const whole = (message: ChatMessage): number[] => [
    message.role === 'assistant' ? BEGIN_ASSISTANT : BEGIN_OTHER,
    ...encode(message.role === 'assistant' ? spoken(message) : `${message.role}${spoken(message)}`),
    END,
  ];
  const generation = [...encode(spoken(answer)), END];
  return {
    prompt_token_ids: [...messages.flatMap(whole), BEGIN_ASSISTANT],
    generation_token_ids: generation,
    generation_log_probs: generation.map((token) => -((token % 997) + 1) / 1009),
  };
}
