import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { toolServer, weatherSentence } from './mcp-tools.ts';

/**
 * - `ok`: works
 * - `refuse`: its port is closed
 * - `unauthorized`: 401 whatever the header
 * - `broken`: 500 on `initialize`
 * - `silent`: takes connections and never answers
 * - `headers_only`: begins an event stream and never sends an event
 * - `no_tools`: works, and lists no tool
 */
export type McpMode = 'ok' | 'refuse' | 'unauthorized' | 'broken' | 'silent' | 'headers_only' | 'no_tools';

export interface McpServerOptions {
  readonly mode?: McpMode;
  /** The whole Authorization header that is asked for. */
  readonly authorization?: string;
  readonly port?: number;
  /** Part of every sentence; random when left out. */
  readonly salt?: string;
  /** How long `initialize` takes. */
  readonly initializeS?: number;
  /** Registers other tools in place of the usual ones. */
  readonly tools?: (server: McpServer) => void;
}

/** One request as it came. */
export interface McpRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  /** The JSON-RPC message; undefined for GET and DELETE. */
  readonly body: { readonly method?: string; readonly id?: unknown; readonly params?: unknown } | undefined;
  readonly receivedAt: number;
  /** Status of the answer; undefined while there is none. */
  status: number | undefined;
}

/** A real MCP server: the SDK's, over streamable HTTP with sessions, behind an Authorization header. */
export class McpTestServer implements AsyncDisposable {
  readonly authorization: string;
  readonly salt: string;
  /** Every request that arrived, in order; in mode `refuse` there are none. */
  readonly requests: McpRequest[] = [];
  /** Calls of `slow` that were cancelled before their time. */
  cancelled = 0;
  readonly #transports = new Map<string, StreamableHTTPServerTransport>();
  readonly #mode: McpMode;
  readonly #initializeMs: number;
  readonly #tools: McpServerOptions['tools'];
  readonly #server = createServer((request, response) => void this.#serve(request, response));
  #port = 0;

  private constructor(options: McpServerOptions) {
    this.authorization = options.authorization ?? `Bearer ${randomBytes(8).toString('hex')}`;
    this.salt = options.salt ?? String(randomBytes(4).readUInt32BE());
    this.#mode = options.mode ?? 'ok';
    this.#initializeMs = (options.initializeS ?? 0) * 1000;
    this.#tools = options.tools;
    Object.assign(this.#server, { requestTimeout: 0, headersTimeout: 0 });
  }

  static async start(options: McpServerOptions = {}): Promise<McpTestServer> {
    const mcp = new McpTestServer(options);
    mcp.#server.listen(options.port ?? 0, '127.0.0.1');
    await once(mcp.#server, 'listening');
    mcp.#port = (mcp.#server.address() as AddressInfo).port;
    if (mcp.#mode === 'refuse') await mcp.close();
    return mcp;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}/mcp`;
  }

  /** MCP sessions that are open: begun, and not ended by a DELETE. */
  get openSessions(): number {
    return this.#transports.size;
  }

  /** What `get_weather` says about a city. */
  weatherOf(city: string): string {
    return weatherSentence(this.salt, city);
  }

  /** JSON-RPC methods in order of arrival: `initialize`, `tools/list`, `tools/call`… */
  get methods(): string[] {
    return this.requests.flatMap(({ body }) => body?.method ?? []);
  }

  async close(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
    await Promise.all([...this.#transports.values()].map((transport) => transport.close()));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const receivedAt = Date.now();
    let bytes = '';
    try {
      for await (const chunk of request.setEncoding('utf8')) bytes += String(chunk);
    } catch {
      return; // The client went away in the middle of its request.
    }
    const entry: McpRequest = {
      method: request.method ?? '',
      path: request.url ?? '',
      headers: request.headers,
      body: bytes === '' ? undefined : (JSON.parse(bytes) as NonNullable<McpRequest['body']>),
      receivedAt,
      status: undefined,
    };
    this.requests.push(entry);
    response.once('finish', () => {
      entry.status = response.statusCode;
    });
    if (this.#mode === 'silent') return;
    if (this.#mode === 'headers_only') {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
      return;
    }
    if (this.#mode === 'unauthorized' || request.headers.authorization !== this.authorization) {
      response.writeHead(401, { 'www-authenticate': 'Bearer' }).end('unauthorized');
      return;
    }
    if (entry.body?.method === 'initialize') {
      if (this.#mode === 'broken') {
        response.writeHead(500, { 'content-type': 'text/plain' }).end('it broke');
        return;
      }
      await sleep(this.#initializeMs);
    }
    const transport = await this.#transportOf(request, entry);
    if (transport === undefined) response.writeHead(404).end();
    else await transport.handleRequest(request, response, entry.body);
  }

  async #transportOf(request: IncomingMessage, entry: McpRequest): Promise<StreamableHTTPServerTransport | undefined> {
    const sessionId = request.headers['mcp-session-id'];
    if (typeof sessionId === 'string') return this.#transports.get(sessionId);
    if (entry.body?.method !== 'initialize') return undefined;
    const transport: StreamableHTTPServerTransport = new StreamableHTTPServerTransport({
      sessionIdGenerator: () => randomUUID(),
      onsessioninitialized: (id) => void this.#transports.set(id, transport),
      onsessionclosed: (id) => void this.#transports.delete(id),
    });
    const hooks = { salt: this.salt, onCancelled: () => void this.cancelled++ };
    await toolServer(hooks, { hasTools: this.#mode !== 'no_tools', tools: this.#tools }).connect(transport);
    return transport;
  }
}
