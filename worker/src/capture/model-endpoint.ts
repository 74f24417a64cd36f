import { FleetError, reasonOf } from '@hermes-fleet/shared';
import { Agent, request } from 'undici';
import { anySignal, Cancellation } from '../cancellation.ts';

/** No hidden limit: a model may think longer than the 300 s of a default client. Our own deadline is each try's. */
const agent = new Agent({ headersTimeout: 0, bodyTimeout: 0, keepAliveTimeout: 1_000, connect: { timeout: 30_000 } });

const MAX_REPLY_BYTES = 256 * 1024 * 1024;
/** Kept of a body that is no answer, for people. */
const ERROR_BODY_BYTES = 2048;

export interface EndpointReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly text: string;
  readonly ms: number;
}

/** One try of a call that got no usable answer. */
export class TryFailure extends Error {
  readonly failure: FleetError;
  readonly reply: EndpointReply | undefined;
  readonly retryAfterMs: number | undefined;
  readonly isRetryable: boolean;

  constructor(
    failure: FleetError,
    options: {
      readonly reply?: EndpointReply;
      readonly retryAfterMs?: number | undefined;
      readonly isRetryable: boolean;
    },
  ) {
    super(failure.message, { cause: failure });
    this.failure = failure;
    this.reply = options.reply;
    this.retryAfterMs = options.retryAfterMs;
    this.isRetryable = options.isRetryable;
  }
}

/**
 * Sends one try to the Model Server and reads the answer whole. A 4xx that Hermes must judge (a context overflow) comes
 * back as it is.
 *
 * @throws TryFailure with the code it has when it was the last try
 */
export async function tryModelCall(
  url: string,
  body: string,
  options: { readonly credential: string | undefined; readonly timeoutMs: number; readonly signal: AbortSignal },
): Promise<EndpointReply> {
  const begun = performance.now();
  using limit = new Cancellation();
  limit.abortAfter(
    options.timeoutMs,
    'infra/model_unreachable',
    `${url} did not answer within ${options.timeoutMs / 1000} s`,
  );
  const signal = anySignal(options.signal, limit.signal);
  let reply: EndpointReply;
  try {
    const headers: Record<string, string> = { 'content-type': 'application/json', accept: 'application/json' };
    if (options.credential !== undefined) headers['authorization'] = `Bearer ${options.credential}`;
    const response = await request(url, { method: 'POST', headers, body, dispatcher: agent, signal });
    const text = withoutSecret(await readText(response.body), response.statusCode, options.credential);
    reply = {
      status: response.statusCode,
      headers: keptHeaders(response.headers),
      text,
      ms: Math.round(performance.now() - begun),
    };
  } catch (error) {
    if (options.signal.aborted) throw options.signal.reason;
    if (limit.reason !== undefined) throw new TryFailure(limit.reason, { isRetryable: true });
    throw new TryFailure(
      new FleetError('infra/model_unreachable', `${url} cannot be reached (${reasonOf(error)})`, { cause: error }),
      { isRetryable: true },
    );
  }
  judge(url, reply);
  return reply;
}

async function readText(body: AsyncIterable<Buffer>): Promise<string> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size > MAX_REPLY_BYTES) throw new Error(`the reply is over ${MAX_REPLY_BYTES} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}

/** A server may repeat the key in its complaint, which is shown to people and to the model. */
function withoutSecret(text: string, status: number, credential: string | undefined): string {
  return status < 300 || credential === undefined ? text : text.replaceAll(credential, '[secret]');
}

/** Headers of a reply that say something about the call; the rest is the transport's. */
function keptHeaders(headers: Readonly<Record<string, string | string[] | undefined>>): Record<string, string> {
  const kept: Record<string, string> = {};
  for (const [name, value] of Object.entries(headers)) {
    if (typeof value === 'string' && (name === 'retry-after' || name === 'content-type' || name.startsWith('x-')))
      kept[name] = value;
  }
  return kept;
}

/** Lets a usable reply pass. */
function judge(url: string, reply: EndpointReply): void {
  const { status } = reply;
  const said = reply.text === '' ? 'an empty body' : reply.text.slice(0, ERROR_BODY_BYTES);
  const fail = (failure: FleetError, isRetryable: boolean): never => {
    throw new TryFailure(failure, { reply, retryAfterMs: retryAfterMs(reply.headers['retry-after']), isRetryable });
  };
  if (status === 401 || status === 403)
    fail(new FleetError('infra/model_auth', `${url} answered ${status}: the credential is missing or wrong`), false);
  if (status === 429) fail(new FleetError('infra/model_rate_limited', `${url} answered 429: ${said}`), true);
  if (status === 408 || status === 425 || status >= 500)
    fail(new FleetError('infra/model_unreachable', `${url} answered ${status}: ${said}`), true);
  if (status >= 300 && status < 400)
    fail(new FleetError('infra/model_bad_reply', `${url} answered ${status}: redirects are not followed`), false);
}

/** Delay that a Retry-After asks for: seconds, or a date. */
function retryAfterMs(value: string | undefined): number | undefined {
  if (value === undefined) return undefined;
  const seconds = Number(value);
  const ms = Number.isFinite(seconds) ? seconds * 1000 : Date.parse(value) - Date.now();
  return Number.isFinite(ms) ? Math.max(0, ms) : undefined;
}
