import { randomUUID } from 'node:crypto';

/** A message of a chat, as far as scripts look at it. */
export interface ChatMessage {
  readonly role: string;
  readonly content?: unknown;
  readonly tool_calls?: readonly ToolCall[];
  readonly tool_call_id?: string;
  readonly reasoning_content?: string;
}

export interface ToolCall {
  readonly id: string;
  readonly type: 'function';
  readonly function: { readonly name: string; readonly arguments: string };
}

/** A request body, parsed. The bytes as they came are in the record of the call. */
export interface ChatRequest {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly { readonly function: { readonly name: string } }[];
  readonly [field: string]: unknown;
}

export interface Completion {
  readonly kind: 'completion';
  readonly message: Readonly<Record<string, unknown>>;
  readonly finishReason: string;
  readonly usage?: Readonly<Record<string, unknown>>;
  /** With token ids and log-probs on the message, as the training Model Server of NeMo Gym gives them. */
  readonly withTokens?: boolean;
  /** Over several lines, as some servers print JSON. */
  readonly isPretty?: boolean;
  readonly headers?: Readonly<Record<string, string>>;
}

/** What the server does with one request. */
export type Reply =
  | Completion
  | {
      /** Any status with any bytes, sent as they are. */
      readonly kind: 'raw';
      readonly status: number;
      readonly headers: Readonly<Record<string, string>>;
      readonly body: string | Buffer;
    }
  /** The socket is cut before the first byte. */
  | { readonly kind: 'cut' }
  /** The socket is cut after the headers. */
  | { readonly kind: 'headers_only' }
  /** Nothing, until the client goes away. */
  | { readonly kind: 'silence' };

/** @param call how many requests of this model came before */
export type Script = (request: ChatRequest, call: number) => Reply | Promise<Reply>;

export const say = (text: string, more: Partial<Completion> = {}): Completion => ({
  kind: 'completion',
  message: { role: 'assistant', content: text },
  finishReason: 'stop',
  ...more,
});

/** Several calls in one message. */
export const callTools = (
  calls: readonly { readonly name: string; readonly args: unknown; readonly id?: string }[],
  more: Partial<Completion> = {},
): Completion => ({
  kind: 'completion',
  message: {
    role: 'assistant',
    content: null,
    tool_calls: calls.map(({ name, args, id = `call_${randomUUID().replaceAll('-', '').slice(0, 12)}` }) => ({
      id,
      type: 'function',
      function: { name, arguments: typeof args === 'string' ? args : JSON.stringify(args) },
    })),
  },
  finishReason: 'tool_calls',
  ...more,
});

/** @param args an object, or text where the arguments are to be no JSON */
export const callTool = (name: string, args: unknown, id?: string): Completion =>
  callTools([id === undefined ? { name, args } : { name, args, id }]);

/** A status with an error body in OpenAI's form. */
export const status = (code: number, headers: Readonly<Record<string, string>> = {}, message = 'scripted'): Reply => ({
  kind: 'raw',
  status: code,
  headers: { 'content-type': 'application/json', ...headers },
  body: JSON.stringify({ error: { message, type: 'scripted_error', code } }),
});

export const tooManyRequests = (retryAfter: string | number): Reply =>
  status(429, { 'retry-after': String(retryAfter) }, 'too many requests');

/** What a proxy says whose server is gone. */
export const badGateway = (): Reply => ({
  kind: 'raw',
  status: 502,
  headers: { 'content-type': 'text/html' },
  body: '<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>',
});

/** Bytes as they are, with status 200: bare `NaN`, integers above 2^53, escaped lone surrogates, half a body. */
export const raw = (body: string | Buffer, headers: Readonly<Record<string, string>> = {}): Reply => ({
  kind: 'raw',
  status: 200,
  headers: { 'content-type': 'application/json', ...headers },
  body,
});

export const cutSocket = (): Reply => ({ kind: 'cut' });
export const headersOnly = (): Reply => ({ kind: 'headers_only' });
export const silence = (): Reply => ({ kind: 'silence' });

/** The nth request of the model gets the nth reply; one too many gets a 400 that says so. */
export const sequence = (steps: readonly (Reply | Script)[]): Script => {
  let next = 0;
  return (request, call) => pick(steps, next++, request, call);
};

/**
 * The reply is chosen by how many assistant messages follow the last user message, so that sessions at the same time,
 * repeats of a call and restarts of the server all get what belongs to them.
 */
export const turns =
  (steps: readonly (Reply | Script)[]): Script =>
  (request, call) =>
    pick(steps, turnOf(request), request, call);

function pick(steps: readonly (Reply | Script)[], index: number, request: ChatRequest, call: number) {
  const step = steps[index];
  if (step === undefined) return status(400, {}, `the script has ${steps.length} replies, and this is one too many`);
  return typeof step === 'function' ? step(request, call) : step;
}

/** Assistant messages since the last user message. */
export function turnOf({ messages }: ChatRequest): number {
  const sinceUser = messages.slice(messages.findLastIndex((message) => message.role === 'user') + 1);
  return sinceUser.filter((message) => message.role === 'assistant').length;
}

/** The text of a message, whether its content is text or a list of parts. */
export function textOf(message: ChatMessage | undefined): string {
  const content = message?.content;
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return '';
  return content
    .map((part: unknown) => (typeof part === 'object' && part !== null && 'text' in part ? String(part.text) : ''))
    .join('');
}

/** A reply held back until `release`; `isHolding` says that a request has come and waits. */
export function hold(reply: Reply | Script): { script: Script; release: () => void; readonly isHolding: boolean } {
  let release = (): void => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  let held = 0;
  return {
    script: async (request, call) => {
      held++;
      await released;
      return typeof reply === 'function' ? await reply(request, call) : reply;
    },
    release,
    get isHolding() {
      return held > 0;
    },
  };
}
