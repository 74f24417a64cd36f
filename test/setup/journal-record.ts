import type { JournalRecord, RecordedAct, RecordedEvent } from '@hermes-fleet/worker/capture/journal';
import { contentHash } from '@hermes-fleet/worker/capture/journal';
import { parseExact, stringifyExact } from '@hermes-fleet/worker/capture/exact-json';
import { TokenRecord } from '@hermes-fleet/worker/capture/tokens';
import type { Who } from '@hermes-fleet/worker/capture/model-calls';

export const ROOT_AGENT: Who = { agent: 'a0', parent: null, spawned_by: null, kind: 'main' };

export const child = (agent: string, spawnedBy: string, parent = 'a0'): Who => ({
  agent,
  parent,
  spawned_by: spawnedBy,
  kind: 'main',
});

export interface Asked {
  readonly id?: string;
  readonly name: string;
  readonly args?: string;
}

export interface Said {
  readonly content?: string | null;
  readonly reasoning?: string;
  readonly tools?: readonly Asked[];
  readonly finish?: string;
  /** Prompt and generation; log-probs are made up. */
  readonly tokens?: readonly [prompt: readonly number[], generation: readonly number[]];
  readonly usage?: readonly [input: number, output: number] | null;
  /** The record of what was said is gone. */
  readonly isLost?: boolean;
}

export interface Failed {
  readonly error: string;
  readonly status?: number;
}

/** Builds what a journal holds of an activation, act by act, as `ModelCalls`, `McpCalls` and the broker write it. */
export class RecordBuilder {
  fence = '1.aa';
  readonly #acts: RecordedAct[] = [];
  readonly #events: RecordedEvent[] = [];
  readonly #texts = new Map<string, string>();
  readonly #tokens = new Map<string, TokenRecord>();
  #at = 1_700_000_000_000;
  #act = 0;

  /** A model call; without a reply it was cut off. Messages are those of the request. */
  call(reply: Said | Failed | undefined, messages: readonly object[] = [], who: Who = ROOT_AGENT): this {
    const act = String(++this.#act);
    const outcome =
      reply === undefined ? undefined : 'error' in reply ? { status: null, ...reply } : this.#outcome(act, who, reply);
    return this.#push(
      'model',
      act,
      { who, messages: messages.map((message) => this.#keep(JSON.stringify(message))) },
      outcome,
    );
  }

  /** A command that ran for a tool call. */
  exec(
    call: string,
    output: string | undefined,
    options: { readonly who?: Who; readonly isInternal?: boolean } = {},
  ): this {
    const { who = ROOT_AGENT, isInternal = false } = options;
    const outcome =
      output === undefined ? undefined : { code: 0, output: this.#keep(JSON.stringify(output)), status: 'completed' };
    return this.#push('tool', String(++this.#act), { who: { ...who, call }, internal: isInternal }, outcome);
  }

  mcp(call: string, result: object | undefined, isError = false): this {
    const outcome =
      result === undefined ? undefined : { result: this.#keep(JSON.stringify(result)), is_error: isError };
    return this.#push('mcp', String(++this.#act), { who: { ...ROOT_AGENT, call } }, outcome);
  }

  event(event: Readonly<Record<string, unknown>>): this {
    this.#events.push({ fence: this.fence, at: this.#at++, event });
    return this;
  }

  servers(servers: Readonly<Record<string, readonly string[]>>): this {
    return this.event({ kind: 'mcp_servers', servers });
  }

  /** Another run of the activation. */
  begin(fence: string): this {
    this.fence = fence;
    this.#act = 0;
    return this;
  }

  get record(): JournalRecord {
    return { acts: [...this.#acts], events: [...this.#events], texts: new Map(this.#texts) };
  }

  #outcome(act: string, who: Who, said: Said): Record<string, unknown> {
    const { content = null, reasoning, tools = [], finish, tokens, usage = [10, 5], isLost = false } = said;
    const reply = {
      id: `chat-${this.fence}-${act}`,
      choices: [
        {
          finish_reason: finish ?? (tools.length > 0 ? 'tool_calls' : 'stop'),
          message: {
            role: 'assistant',
            content,
            reasoning_content: reasoning,
            tool_calls: tools.map(({ id = '', name, args = '{}' }) => ({
              id,
              type: 'function',
              function: { name, arguments: args },
            })),
            ...(tokens === undefined
              ? {}
              : {
                  prompt_token_ids: tokens[0],
                  generation_token_ids: tokens[1],
                  generation_log_probs: tokens[1].map((id) => -id / 1000),
                }),
          },
        },
      ],
    };
    const parsed = parseExact(JSON.stringify(reply)) as Parameters<TokenRecord['take']>[2];
    const kept = this.#tokens.get(this.fence) ?? new TokenRecord();
    this.#tokens.set(this.fence, kept);
    const stored = kept.take(act, who.agent ?? '', parsed);
    const text = stringifyExact(parsed);
    return {
      status: 200,
      body: isLost ? contentHash(text) : this.#keep(text),
      tokens: stored === undefined ? undefined : isLost ? contentHash(stored) : this.#keep(stored),
      usage: usage === null ? null : { input: usage[0], output: usage[1], cached: 1, reasoning: 2 },
      response_id: reply.id,
      finish_reason: reply.choices[0]?.finish_reason,
    };
  }

  #push(kind: RecordedAct['kind'], act: string, intent: object, outcome: object | undefined): this {
    const begunAt = this.#at++;
    this.#acts.push({
      fence: this.fence,
      kind,
      act,
      begunAt,
      endedAt: outcome === undefined ? undefined : this.#at++,
      intent: intent as Record<string, unknown>,
      outcome: outcome as Record<string, unknown> | undefined,
    });
    return this;
  }

  #keep(text: string): string {
    const hash = contentHash(text);
    this.#texts.set(hash, text);
    return hash;
  }
}

export const userMessage = (content: string) => ({ role: 'user', content });
export const toolMessage = (id: string, content: string) => ({ role: 'tool', tool_call_id: id, content });
export const assistantMessage = (content: string | null, ...tools: readonly Asked[]) => ({
  role: 'assistant',
  content,
  ...(tools.length === 0
    ? {}
    : {
        tool_calls: tools.map(({ id = '', name, args = '{}' }) => ({
          id,
          type: 'function',
          function: { name, arguments: args },
        })),
      }),
});
