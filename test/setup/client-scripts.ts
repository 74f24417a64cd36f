import { connectRedis, Keys, Scripts, sessionKey } from '@hermes-fleet/shared';
import { type JournalRecord, readJournal } from '@hermes-fleet/worker/capture/journal';
import type { Who } from '@hermes-fleet/worker/capture/model-calls';
import { expect, inject } from 'vitest';
import type { TestFleet } from './fleet.ts';
import { callTool, type ChatMessage, type ChatRequest, say, type Script, textOf } from './model-replies.ts';

/** Number of a session's first activation: its seed is the first command. */
const FIRST_ACTIVATION = 2;

/** What the worker wrote down of an activation, read back as results are. */
export async function journalOf(
  fleet: TestFleet,
  sessionId: string,
  number = FIRST_ACTIVATION,
): Promise<JournalRecord> {
  const redis = connectRedis(inject('redisUrl'), () => undefined);
  try {
    return await readJournal(new Scripts(redis, new Keys(fleet.id)), sessionKey(sessionId), String(number));
  } finally {
    redis.disconnect();
  }
}

/** A recorded model call: who made it, where it went, and what it asked. */
export interface RecordedCall {
  readonly who: Who;
  readonly url: string;
  readonly messages: readonly ChatMessage[];
}

export function modelCallsIn({ acts, texts }: JournalRecord): RecordedCall[] {
  return acts
    .filter(({ kind }) => kind === 'model')
    .map(({ intent }) => ({
      who: intent['who'] as Who,
      url: String(intent['url']),
      messages: (intent['messages'] as string[]).map((hash) => JSON.parse(texts.get(hash) ?? '{}') as ChatMessage),
    }));
}

/** Who ran what in the sandbox, act by act. */
export const toolActsOf = ({ acts }: JournalRecord): Who[] =>
  acts.filter(({ kind }) => kind === 'tool').map(({ intent }) => intent['who'] as Who);

/** The task of whoever asks: the first thing that a user said to it. */
export const taskOf = ({ messages }: Pick<ChatRequest, 'messages'>): string =>
  textOf(messages.find(({ role }) => role === 'user'));

/** Fills the window until Hermes compacts it, and ends after `turns` turns. */
export function fillingScript(turns: number): Script {
  let asked = 0;
  return (request) => {
    if (request.tools === undefined) return say('SUMMARY of what was done');
    asked++;
    if (asked > turns) return say('done');
    const tokens = 20_000 + 8_000 * request.messages.filter(({ role }) => role === 'tool').length;
    return {
      ...callTool('terminal', { command: `echo step ${asked}; seq 1 400` }),
      usage: { prompt_tokens: tokens, completion_tokens: 10, total_tokens: tokens + 10 },
    };
  };
}

const MEET_MS = 20_000;

/** Every request of a model came whole to the one URL, and each is in the journal, in the order of arrival. */
export function expectAllRecorded(
  of: TestFleet,
  name: string,
  recorded: readonly RecordedCall[],
  url = of.model.url,
): void {
  const arrived = of.model.callsOf(name);
  expect(recorded.length).toBe(arrived.length);
  expect(new Set(recorded.map((call) => call.url))).toEqual(new Set([`${url}/chat/completions`]));
  for (const { body } of arrived) {
    expect(body).not.toHaveProperty('stream');
    expect(body).not.toHaveProperty('stream_options');
  }
  const bodies = (calls: readonly { readonly messages?: unknown }[]): string[] =>
    calls.map(({ messages }) => JSON.stringify(messages)).toSorted((one, other) => one.localeCompare(other));
  expect(bodies(recorded)).toEqual(bodies(arrived.map(({ body }) => body ?? {})));
}

/** Holds the first call of each of `names` until all of them have come. */
export function meeting(names: readonly string[]): { arrive: (name: string) => Promise<boolean> } {
  const missing = new Set(names);
  let meet: (value: boolean) => void = () => undefined;
  const met = new Promise<boolean>((resolve) => (meet = resolve));
  return {
    arrive: async (name) => {
      missing.delete(name);
      if (missing.size === 0) meet(true);
      const timer = setTimeout(() => meet(false), MEET_MS);
      const isMet = await met;
      clearTimeout(timer);
      return isMet;
    },
  };
}
