import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  type ChatMessage,
  type ChatRequest,
  type Completion,
  type Reply,
  type Script,
  status,
} from './model-replies.ts';
import { tokenFields } from './model-tokens.ts';

/** One request as it came, and what became of it. Times are milliseconds since 1970. */
export interface ModelCall {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly bodyText: string;
  /** Undefined where the body is no JSON object. */
  readonly body: ChatRequest | undefined;
  readonly receivedAt: number;
  /** Port of the client: the same for requests over one connection. */
  readonly clientPort: number | undefined;
  /** The reply that the script gave, once it gave one. */
  reply?: Reply;
  answeredAt?: number;
  /** When the client closed the connection before it had the whole answer. */
  abortedAt?: number;
}

export interface ModelServerOptions {
  readonly port?: number;
  /** Asked for as `Authorization: Bearer …` where given. */
  readonly token?: string;
  /** Token ids and log-probs on every completion. */
  readonly withTokens?: boolean;
  /** Told of each request when its body is there. */
  readonly onCall?: (call: ModelCall) => void;
}

/**
 * A real HTTP server that answers whole chat completions from scripts, one per model name, and remembers every request.
 * It refuses to stream, as NeMo Gym's Model Server does.
 */
export class ModelServer implements AsyncDisposable {
  /** Every request to any path, in order of arrival. */
  readonly calls: ModelCall[] = [];
  /** How many of them asked for a stream, and got a 422. */
  refusedStreams = 0;
  readonly #scripts = new Map<string, Script>();
  readonly #counts = new Map<string, number>();
  readonly #open = new Set<ModelCall>();
  readonly #options: ModelServerOptions;
  readonly #server = createServer((request, response) => void this.#serve(request, response));

  private constructor(options: ModelServerOptions) {
    this.#options = options;
    // Its own limits would end what is held on purpose; connections live longer than those of any test.
    Object.assign(this.#server, { requestTimeout: 0, headersTimeout: 0, keepAliveTimeout: 600_000 });
  }

  static async start(options: ModelServerOptions = {}): Promise<ModelServer> {
    const model = new ModelServer(options);
    model.#server.listen(options.port ?? 0, '127.0.0.1');
    await once(model.#server, 'listening');
    return model;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Base URL as OpenAI clients want it; any prefix before `/chat/completions` is served. */
  get url(): string {
    return `http://127.0.0.1:${this.port}/v1`;
  }

  /** Requests that have come and are not answered; those whose client went away are not among them. */
  get openCalls(): readonly ModelCall[] {
    return [...this.#open];
  }

  /** Requests for completions of one model. */
  callsOf(model: string): readonly ModelCall[] {
    return this.calls.filter((call) => call.body?.model === model && call.path.endsWith('/chat/completions'));
  }

  /** What the model says from now on; a reply alone is said to every request. */
  script(model: string, script: Script | Reply): this {
    this.#scripts.set(model, typeof script === 'function' ? script : () => script);
    return this;
  }

  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const receivedAt = Date.now();
    const chunks: Buffer[] = [];
    try {
      for await (const chunk of request) chunks.push(chunk as Buffer);
    } catch {
      return; // The client went away in the middle of its request.
    }
    const bodyText = Buffer.concat(chunks).toString();
    const call: ModelCall = {
      method: request.method ?? '',
      path: request.url ?? '',
      headers: request.headers,
      bodyText,
      body: parse(bodyText),
      receivedAt,
      clientPort: request.socket.remotePort,
    };
    this.calls.push(call);
    this.#open.add(call);
    response.once('close', () => {
      this.#open.delete(call);
      if (response.writableFinished) call.answeredAt = Date.now();
      // A socket that we ended ourselves is not the client's doing.
      else if (this.#server.listening && call.reply?.kind !== 'cut' && call.reply?.kind !== 'headers_only')
        call.abortedAt = Date.now();
    });
    this.#options.onCall?.(call);
    const reply = await this.#replyTo(call);
    call.reply = reply;
    if (!response.destroyed) send(response, reply, call.body, this.#options.withTokens ?? false);
  }

  async #replyTo(call: ModelCall): Promise<Reply> {
    const { token } = this.#options;
    if (token !== undefined && call.headers.authorization !== `Bearer ${token}`)
      return status(401, {}, 'wrong or missing bearer token');
    if (call.method === 'GET' && call.path.endsWith('/models')) return this.#models();
    if (call.method !== 'POST' || !call.path.endsWith('/chat/completions')) return status(404, {}, 'no such path');
    if (call.body === undefined) return status(400, {}, 'the body is no JSON object');
    if (call.body['stream'] === true) {
      this.refusedStreams++;
      return status(422, {}, 'this server does not stream');
    }
    const { model } = call.body;
    const script = this.#scripts.get(model);
    if (script === undefined) return status(404, {}, `the model ${JSON.stringify(model)} has no script`);
    const count = this.#counts.get(model) ?? 0;
    this.#counts.set(model, count + 1);
    try {
      return await script(call.body, count);
    } catch (error) {
      // 400, for it is not tried again: the test sees at once that its script is at fault.
      return status(400, {}, `the script failed: ${String(error)}`);
    }
  }

  #models(): Reply {
    const data = [...this.#scripts.keys()].map((id) => ({ id, object: 'model', created: 0, owned_by: 'test' }));
    return {
      kind: 'raw',
      status: 200,
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ object: 'list', data }),
    };
  }
}

function parse(text: string): ChatRequest | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as ChatRequest) : undefined;
  } catch {
    return undefined;
  }
}

function send(response: ServerResponse, reply: Reply, request: ChatRequest | undefined, withTokens: boolean): void {
  switch (reply.kind) {
    case 'completion':
      response.writeHead(200, { 'content-type': 'application/json', ...reply.headers });
      response.end(completionText(reply, request, withTokens));
      break;
    case 'raw':
      response.writeHead(reply.status, reply.headers);
      response.end(reply.body);
      break;
    case 'cut':
      response.destroy();
      break;
    case 'headers_only':
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
      response.flushHeaders();
      response.socket?.end();
      break;
    case 'silence':
      break;
  }
}

function completionText(reply: Completion, request: ChatRequest | undefined, withTokens: boolean): string {
  const tokens =
    (reply.withTokens ?? withTokens)
      ? tokenFields(request?.messages ?? [], reply.message as unknown as ChatMessage)
      : undefined;
  const promptTokens = tokens?.prompt_token_ids.length ?? 10;
  const completionTokens = tokens?.generation_token_ids.length ?? 5;
  const completion = {
    id: `chatcmpl-${randomUUID()}`,
    object: 'chat.completion',
    created: Math.floor(Date.now() / 1000),
    model: request?.model ?? '',
    choices: [{ index: 0, message: { ...reply.message, ...tokens }, finish_reason: reply.finishReason }],
    usage: reply.usage ?? {
      prompt_tokens: promptTokens,
      completion_tokens: completionTokens,
      total_tokens: promptTokens + completionTokens,
    },
  };
  return JSON.stringify(completion, undefined, reply.isPretty === true ? 2 : undefined);
}
