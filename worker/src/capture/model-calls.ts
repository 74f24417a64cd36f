import { FleetError, type ModelSpec, reasonOf } from '@hermes-fleet/shared';
import { anySignal, type Cancellation } from '../cancellation.ts';
import type { Log } from '../log.ts';
import type { Backoff } from './backoff.ts';
import type { Budget } from './budget.ts';
import { clientFailure, completionOf, estimatedTokens, firstChoice, usageOf } from './completion.ts';
import {
  type ExactObject,
  isExactObject,
  numberOf,
  parseExact,
  stringifyExact,
  textOf,
  wellFormedJson,
} from './exact-json.ts';
import type { Journal } from './journal.ts';
import { type EndpointReply, tryModelCall, TryFailure } from './model-endpoint.ts';
import { TokenRecord } from './tokens.ts';
import { separateToolIds } from './tool-ids.ts';

/** Who makes a call, as the runner tags it. */
export interface Who {
  readonly agent: string | null;
  readonly parent: string | null;
  readonly spawned_by: string | null;
  readonly kind?: 'main' | 'summary' | 'auxiliary';
  readonly call?: string;
  readonly tool?: string;
}

/** An answer to the runner. */
export interface HttpAnswer {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Buffer | undefined;
}

export interface ModelCallsOptions {
  readonly model: ModelSpec;
  readonly baseUrl: string;
  readonly credential: string | undefined;
  readonly tries: number;
  readonly timeoutMs: number;
  readonly backoff: Backoff;
  readonly budget: Budget;
  readonly journal: Journal;
  readonly cancellation: Cancellation;
  readonly log: Log;
}

const COMPLETIONS = '/chat/completions';
/** Of a request, what is kept by hash and not in the entry itself. */
const BULKY = new Set(['messages', 'tools']);

/** A call that Hermes must not see succeed or fail any more: the run is over. */
const OVER: HttpAnswer = { status: 503, body: Buffer.from('{"error":{"message":"the activation is over"}}') };

/** Every model call of one activation: budget, intent, tries, outcome, answer. */
export class ModelCalls {
  readonly #options: ModelCallsOptions;
  readonly #url: string;
  /** What a server's limits are taken to count together. */
  readonly #endpoint: string;
  readonly #tokens = new TokenRecord();
  #failure: FleetError | undefined;

  constructor(options: ModelCallsOptions) {
    this.#options = options;
    this.#url = `${options.baseUrl}${COMPLETIONS}`;
    this.#endpoint = JSON.stringify([this.#url, options.model.name, options.model.credential ?? null]);
  }

  /** Why the root agent's last call failed; undefined when it was answered. */
  get rootFailure(): FleetError | undefined {
    return this.#failure;
  }

  /** Answers one call of the runner; rejects never. */
  async handle(call: {
    readonly who: Who;
    readonly path: string;
    readonly method: string;
    readonly body: Buffer | undefined;
    /** Aborted when the runner no longer waits for this one. */
    readonly signal: AbortSignal;
  }): Promise<HttpAnswer> {
    const { who, path, method, body } = call;
    if (path !== COMPLETIONS || method !== 'POST' || body === undefined)
      return refusal(404, `only POST ${COMPLETIONS} is served, not ${method} ${path}`);
    try {
      return await this.#call(who, body.toString(), anySignal(this.#options.cancellation.signal, call.signal));
    } catch (error) {
      const failure =
        error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error });
      if (failure.resultClass === 'incomplete') this.#options.cancellation.abort(failure);
      if (this.#options.cancellation.signal.aborted || call.signal.aborted) return OVER;
      this.#note(who, failure);
      return refusal(503, failure.message);
    }
  }

  async #call(who: Who, text: string, signal: AbortSignal): Promise<HttpAnswer> {
    const { budget, journal, cancellation, backoff, tries, log, timeoutMs, credential } = this.#options;
    signal.throwIfAborted();
    const request = parseExact(text);
    if (!isExactObject(request)) return refusal(400, 'the request is not a JSON object');
    delete request['stream'];
    delete request['stream_options'];
    budget.takeCall();
    const kept = await this.#keep(request);
    for (let count = 1; ; count++) {
      await this.#leaveAlone(who, signal);
      const asked = numberOf(request['max_tokens']) ?? this.#options.model.max_tokens;
      const allowed = budget.allow(asked);
      const lowering = allowed < asked ? budget.lowering : undefined;
      request['max_tokens'] = allowed;
      const act = journal.nextAct();
      await journal.begin('model', act, {
        who,
        url: this.#url,
        try: count,
        request: kept.params,
        max_tokens: allowed,
        messages: kept.messages,
        tools: kept.tools,
      });
      const outcome = await this.#try(stringifyExact(request), { credential, timeoutMs, signal });
      if (outcome instanceof TryFailure) {
        await this.#recordFailure(act, outcome);
        log.warn(
          { url: this.#url, try: count, of: tries, code: outcome.failure.code, reason: outcome.failure.message },
          'model call failed',
        );
        // Also for the time of the pause: a run that ends meanwhile ends because of this.
        this.#note(who, outcome.failure);
        const mayRetry = outcome.isRetryable && count < tries;
        if (mayRetry && (await backoff.wait(this.#endpoint, count, outcome.retryAfterMs, signal))) continue;
        return outcome.reply === undefined ? refusal(503, outcome.failure.message) : answerOf(outcome.reply);
      }
      const answer = await this.#recordReply(act, who, request, outcome);
      if (lowering !== undefined && answer.finishReason === 'length')
        cancellation.abort(new FleetError(lowering, `the token budget ended a call after ${allowed} tokens`));
      return answer.http;
    }
  }

  /** Waits while the server is left alone, because it told any call of this worker so. */
  async #leaveAlone(who: Who, signal: AbortSignal): Promise<void> {
    const { backoff, log } = this.#options;
    const left = backoff.left(this.#endpoint);
    if (left === 0) return;
    const seconds = Math.ceil(left / 1000);
    log.warn({ url: this.#url, seconds }, 'waiting for the Model Server, which asked to be left alone');
    const asked = `${this.#url} has asked to be left alone for another ${seconds} s`;
    this.#note(who, new FleetError('infra/model_rate_limited', asked));
    await backoff.ready(this.#endpoint, signal);
  }

  async #try(
    body: string,
    options: { readonly credential: string | undefined; readonly timeoutMs: number; readonly signal: AbortSignal },
  ): Promise<(EndpointReply & { readonly parsed: ExactObject | undefined }) | TryFailure> {
    try {
      const reply = await tryModelCall(this.#url, body, options);
      if (reply.status >= 400) return { ...reply, parsed: undefined };
      return { ...reply, parsed: completionOf(this.#url, reply) };
    } catch (error) {
      if (error instanceof TryFailure) return error;
      throw error;
    }
  }

  /** Stores messages and tools by content; what is left of the request goes into the entry. */
  async #keep(
    request: ExactObject,
  ): Promise<{ readonly params: string; readonly messages: string[]; readonly tools: string | undefined }> {
    const messages = Array.isArray(request['messages']) ? request['messages'].map(stringifyExact) : [];
    const tools = request['tools'] === undefined ? [] : [stringifyExact(request['tools'])];
    const hashes = await this.#options.journal.store([...messages, ...tools]);
    const params = Object.fromEntries(Object.entries(request).filter(([name]) => !BULKY.has(name)));
    return {
      params: stringifyExact(params),
      messages: hashes.slice(0, messages.length),
      tools: tools.length === 0 ? undefined : hashes.at(-1),
    };
  }

  async #recordFailure(act: string, failure: TryFailure): Promise<void> {
    const { journal } = this.#options;
    const [body] = failure.reply === undefined ? [] : await journal.store([failure.reply.text.slice(0, 2048)]);
    await journal.end('model', act, {
      status: failure.reply?.status ?? null,
      error: failure.failure.code,
      reason: failure.failure.message,
      body,
      ms: failure.reply?.ms ?? null,
    });
  }

  async #recordReply(
    act: string,
    who: Who,
    request: ExactObject,
    reply: EndpointReply & { readonly parsed: ExactObject | undefined },
  ): Promise<{ readonly http: HttpAnswer; readonly finishReason: string | undefined }> {
    const { journal, budget } = this.#options;
    const { parsed } = reply;
    if (parsed === undefined) {
      const [body] = await journal.store([reply.text.slice(0, 65_536)]);
      const failure = clientFailure(this.#url, reply);
      await journal.end('model', act, {
        status: reply.status,
        error: failure.code,
        reason: failure.message,
        body,
        ms: reply.ms,
        headers: reply.headers,
      });
      this.#note(who, failure);
      return { http: answerOf(reply), finishReason: undefined };
    }
    const tokens = this.#tokens.take(act, `${who.agent ?? ''} ${who.kind === 'auxiliary' ? 'auxiliary' : ''}`, parsed);
    const usage = usageOf(parsed);
    if (usage !== undefined) budget.record({ inputTokens: usage.input, outputTokens: usage.output });
    else if (budget.countsTokens) {
      budget.record({
        inputTokens: estimatedTokens(request),
        outputTokens: estimatedTokens(firstChoice(parsed)?.['message']),
      });
      await journal.event({ kind: 'usage_estimated', act });
    }
    const text = stringifyExact(parsed);
    const [body, tokenText] = await journal.store(tokens === undefined ? [text] : [text, tokens]);
    const finishReason = textOf(firstChoice(parsed)?.['finish_reason']);
    const toolIds = separateToolIds(act, request, firstChoice(parsed)?.['message']);
    await journal.end('model', act, {
      status: reply.status,
      body,
      tokens: tokenText,
      tool_ids: toolIds,
      usage: usage ?? null,
      response_id: textOf(parsed['id']) ?? null,
      model: textOf(parsed['model']) ?? null,
      finish_reason: finishReason ?? null,
      ms: reply.ms,
      headers: reply.headers,
    });
    if (isRoot(who)) this.#failure = undefined;
    const told = wellFormedJson(toolIds === undefined ? text : stringifyExact(parsed));
    return {
      http: { status: 200, headers: { 'content-type': 'application/json' }, body: Buffer.from(told) },
      finishReason,
    };
  }

  #note(who: Who, failure: FleetError): void {
    if (isRoot(who)) this.#failure = failure;
  }
}

const isRoot = (who: Who): boolean => who.parent === null && who.kind !== 'auxiliary';

function answerOf(reply: EndpointReply): HttpAnswer {
  return {
    status: reply.status,
    headers: { 'content-type': reply.headers['content-type'] ?? 'text/plain' },
    body: Buffer.from(wellFormedJson(reply.text)),
  };
}

function refusal(status: number, message: string): HttpAnswer {
  return {
    status,
    headers: { 'content-type': 'application/json' },
    body: Buffer.from(JSON.stringify({ error: { message, type: 'hermes_fleet' } })),
  };
}
