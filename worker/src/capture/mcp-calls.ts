import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { CallToolResultSchema, type Tool } from '@modelcontextprotocol/sdk/types.js';
import { FleetError, type McpGrant, type ObservationGap, reasonOf } from '@hermes-fleet/shared';
import { Agent, fetch as undiciFetch, type RequestInit } from 'undici';
import { anySignal, deadlineSignal, onAborted, reasonOfAbort, untilAborted } from '../cancellation.ts';
import {
  parseExact,
  stringifyExact,
  isExactObject,
  textOf,
  wellFormedJson,
  type ExactObject,
  type ExactValue,
} from './exact-json.ts';
import type { Journal } from './journal.ts';
import type { HttpAnswer, Who } from './model-calls.ts';

const agent = new Agent({ headersTimeout: 0, bodyTimeout: 0, keepAliveTimeout: 1_000 });
/** The SDK ends a request after 60 s unless told; our own limits come first. */
const CALL_TIMEOUT_MS = 2_147_483_647;
const END_SESSION_MS = 2_000;
const INVALID_REQUEST = -32_600;
const METHOD_NOT_FOUND = -32_601;
const SERVER_ERROR = -32_000;

/** Only the granted origin is spoken to, and no redirect is followed: the grant's headers go nowhere else. */
function grantFetch(origin: string): typeof fetch {
  const guarded = async (input: string | URL, init?: RequestInit): Promise<unknown> => {
    if (new URL(input).origin !== origin) throw new Error(`the granted origin is ${origin}`);
    return await undiciFetch(input, { ...init, redirect: 'error', dispatcher: agent });
  };
  return guarded as unknown as typeof fetch;
}

/** One granted server, connected. */
export interface McpServer {
  readonly name: string;
  readonly client: Client;
  readonly transport: StreamableHTTPClientTransport;
  readonly headers: Readonly<Record<string, string>>;
  readonly tools: readonly Tool[];
}

/**
 * Connects one granted server and reads its tool list, all pages.
 *
 * @throws FleetError `infra/mcp_unreachable` or `infra/mcp_bad`, naming the grant
 */
export async function connectServer(
  grant: McpGrant,
  options: { readonly connectMs: number; readonly signal: AbortSignal },
): Promise<McpServer> {
  const { url, headers } = grant.connection;
  using limit = deadlineSignal(
    options.connectMs,
    'infra/mcp_unreachable',
    `MCP server "${grant.name}" did not answer within ${options.connectMs / 1000} s`,
  );
  const signal = anySignal(options.signal, limit.signal);
  const client = new Client({ name: 'hermes-fleet', version: '1' }, { capabilities: {} });
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers },
    fetch: grantFetch(new URL(url).origin),
    reconnectionOptions: {
      maxReconnectionDelay: 1,
      initialReconnectionDelay: 1,
      reconnectionDelayGrowFactor: 1,
      maxRetries: 0,
    },
  });
  try {
    // The transport's socket must not outlive the wait for it.
    using _stop = onAborted(signal, () => void transport.close());
    // The SDK keeps its listeners: of the run's own signal it would make a cancel of what has long ended.
    const connecting = new AbortController();
    using _abort = onAborted(signal, () => connecting.abort(reasonOfAbort(signal)));
    await untilAborted(
      signal,
      client.connect(transport as Parameters<Client['connect']>[0], {
        timeout: CALL_TIMEOUT_MS,
        signal: connecting.signal,
      }),
    );
    const tools: Tool[] = [];
    let cursor: string | undefined;
    do {
      const page = await untilAborted(
        signal,
        client.listTools(cursor === undefined ? {} : { cursor }, {
          timeout: CALL_TIMEOUT_MS,
          signal: connecting.signal,
        }),
      );
      tools.push(...page.tools);
      cursor = page.nextCursor;
    } while (cursor !== undefined);
    return { name: grant.name, client, transport, headers, tools };
  } catch (error) {
    await transport.close().catch(() => undefined);
    if (options.signal.aborted) throw options.signal.reason;
    if (limit.signal.aborted) throw limit.signal.reason;
    const reason = reasonOf(error);
    const isUnreachable =
      /fetch failed|ECONN|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ETIMEDOUT|other side closed|socket/i.test(reason);
    throw new FleetError(
      isUnreachable ? 'infra/mcp_unreachable' : 'infra/mcp_bad',
      `MCP server "${grant.name}" ${isUnreachable ? 'cannot be reached' : 'did not connect'} (${hideHeaders(reason, headers)})`,
      { cause: error },
    );
  }
}

/** Tells the server that its session is over; nobody waits for that, and a server that is gone does not matter. */
async function endSession({ client, transport }: McpServer): Promise<void> {
  const limit = setTimeout(() => void client.close().catch(() => undefined), END_SESSION_MS);
  await transport.terminateSession().catch(() => undefined);
  clearTimeout(limit);
  await client.close().catch(() => undefined);
}

/** An error text may repeat what was sent. */
function hideHeaders(text: string, headers: Readonly<Record<string, string>>): string {
  return Object.values(headers).reduce(
    (hidden, value) => (value.length < 4 ? hidden : hidden.replaceAll(value, '[secret]')),
    text,
  );
}

export interface McpOptions {
  readonly connectMs: number;
  /** Most that one call may take; over it the model gets an error. */
  readonly toolMs: number;
  readonly signal: AbortSignal;
  readonly journal: Journal;
}

/** The granted servers of one activation, as plain request and response endpoints for the runner. */
export class McpCalls implements Disposable {
  readonly gaps: ObservationGap[] = [];
  readonly #servers: ReadonlyMap<string, McpServer>;
  readonly #options: McpOptions;

  private constructor(servers: ReadonlyMap<string, McpServer>, options: McpOptions) {
    this.#servers = servers;
    this.#options = options;
  }

  /**
   * Connects every grant before anything else happens. A required one that cannot be had ends the activation; an optional
   * one is left out, with a gap.
   *
   * @throws FleetError `infra/mcp_unreachable` or `infra/mcp_bad`
   */
  static async connect(grants: readonly McpGrant[], options: McpOptions): Promise<McpCalls> {
    const outcomes = await Promise.allSettled(grants.map(async (grant) => await connectServer(grant, options)));
    const servers = new Map<string, McpServer>();
    const gaps: ObservationGap[] = [];
    let failure: unknown;
    for (const [index, outcome] of outcomes.entries()) {
      const grant = grants[index];
      if (grant === undefined) continue;
      if (outcome.status === 'fulfilled') servers.set(grant.name, outcome.value);
      else if (grant.required) failure ??= outcome.reason;
      else gaps.push({ code: 'mcp_server_missing', detail: reasonOf(outcome.reason) });
    }
    const calls = new McpCalls(servers, options);
    calls.gaps.push(...gaps);
    if (failure !== undefined || options.signal.aborted) {
      calls[Symbol.dispose]();
      throw options.signal.aborted ? options.signal.reason : failure;
    }
    return calls;
  }

  get names(): string[] {
    return [...this.#servers.keys()];
  }

  /** Tool names by server, as granted. */
  get tools(): Record<string, string[]> {
    return Object.fromEntries(
      [...this.#servers.values()].map(({ name, tools }) => [name, tools.map((tool) => tool.name)]),
    );
  }

  /** Answers one MCP request of the runner; rejects never. */
  async handle(call: {
    readonly who: Who;
    readonly server: string;
    readonly method: string;
    readonly body: Buffer | undefined;
    readonly signal: AbortSignal;
  }): Promise<HttpAnswer> {
    const server = this.#servers.get(call.server);
    if (server === undefined) return { status: 404 };
    if (call.method !== 'POST' || call.body === undefined) return { status: 405 };
    const message = parseExact(call.body.toString());
    if (!isExactObject(message))
      return rpc(null, { error: { code: INVALID_REQUEST, message: 'not a JSON-RPC message' } });
    const { id } = message;
    // A notification is not answered.
    if (id === undefined) return { status: 202 };
    const params = message['params'];
    switch (textOf(message['method']) ?? '') {
      case 'initialize':
        // Without a session id in the answer Hermes' client opens no stream and sends no DELETE.
        return rpc(id, {
          result: {
            protocolVersion: (isExactObject(params) ? textOf(params['protocolVersion']) : undefined) ?? '2025-06-18',
            capabilities: { tools: {} },
            serverInfo: server.client.getServerVersion() ?? { name: server.name, version: '0' },
            instructions: server.client.getInstructions(),
          },
        });
      case 'ping':
        return rpc(id, { result: {} });
      case 'tools/list':
        return rpc(id, { result: { tools: server.tools } });
      case 'tools/call':
        return isExactObject(params)
          ? await this.#callTool(server, call.who, id, params, call.signal)
          : rpc(id, { error: { code: INVALID_REQUEST, message: 'tools/call without params' } });
      default:
        return rpc(id, { error: { code: METHOD_NOT_FOUND, message: 'method not found' } });
    }
  }

  [Symbol.dispose](): void {
    for (const server of this.#servers.values()) void endSession(server);
  }

  async #callTool(
    server: McpServer,
    who: Who,
    id: ExactValue,
    params: ExactObject,
    requestSignal: AbortSignal,
  ): Promise<HttpAnswer> {
    const { journal, toolMs } = this.#options;
    const begun = performance.now();
    const act = journal.nextAct();
    const [hash] = await journal.store([stringifyExact(params)]);
    await journal.begin('mcp', act, {
      who,
      server: server.name,
      tool: textOf(params['name']) ?? null,
      params: hash,
    });
    const ms = (): number => Math.round(performance.now() - begun);
    const seconds = toolMs / 1000;
    using limit = deadlineSignal(toolMs, 'infra/mcp_unreachable', `the call timed out after ${seconds} s`);
    const signal = anySignal(this.#options.signal, requestSignal, limit.signal);
    // As for connecting.
    const call = new AbortController();
    const stop = onAborted(signal, () => call.abort(reasonOfAbort(signal)));
    try {
      // Not `callTool`, which judges structured content; and plain JSON, as the server is to get it.
      const plain = JSON.parse(stringifyExact(params)) as { name: string };
      const result = await server.client.request({ method: 'tools/call', params: plain }, CallToolResultSchema, {
        signal: call.signal,
        timeout: CALL_TIMEOUT_MS,
      });
      const [stored] = await journal.store([JSON.stringify(result)]);
      await journal.end('mcp', act, {
        result: stored,
        is_error: result.isError === true,
        has_media: result.content.some(({ type }) => type !== 'text'),
        ms: ms(),
      });
      return rpc(id, { result });
    } catch (error) {
      const isLate = limit.signal.aborted;
      const reason = isLate ? reasonOfAbort(limit.signal).message : hideHeaders(reasonOf(error), server.headers);
      const isCancelled = signal.aborted && !isLate;
      await journal.end('mcp', act, {
        error: reason,
        is_error: true,
        is_cancelled: isCancelled,
        ...(isLate ? { status: 'timeout' } : {}),
        ms: ms(),
      });
      const code: unknown = error instanceof Error && 'code' in error ? error.code : undefined;
      return rpc(id, { error: { code: typeof code === 'number' ? code : SERVER_ERROR, message: reason } });
    } finally {
      stop[Symbol.dispose]();
    }
  }
}

function rpc(id: ExactValue, rest: object): HttpAnswer {
  const body = `{"jsonrpc":"2.0","id":${stringifyExact(id)},${JSON.stringify(rest).slice(1)}`;
  return { status: 200, headers: { 'content-type': 'application/json' }, body: Buffer.from(wellFormedJson(body)) };
}
