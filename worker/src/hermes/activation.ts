import { FleetError, reasonOf } from '@hermes-fleet/shared';
import type { Broker } from '../broker/broker.ts';
import { type Cancellation, longTimer, onAborted } from '../cancellation.ts';
import type { Journal } from '../capture/journal.ts';
import type { McpCalls } from '../capture/mcp-calls.ts';
import type { HttpAnswer, ModelCalls, Who } from '../capture/model-calls.ts';
import type { ActivationChannel, ActivationExit, RunnerChannel } from '../channel/channel.ts';
import type { Line } from '../channel/frames.ts';

const SIGTERM = 15;
const SIGKILL = 9;
/** From SIGTERM to SIGKILL: Hermes answers an interrupt within 0.3 s and says what it has. */
const INTERRUPT_GRACE_MS = 700;
/** Requests of one activation under way at once; more is a runner gone wild. */
const MAX_OPEN_REQUESTS = 64;

/** What the runner says of its end: a claim, to be held against the record. */
export interface Claim {
  readonly status: string;
  readonly exitReason: string | undefined;
  readonly error: string | undefined;
  /** What Hermes threw: a fault of its own, whatever the model had said before. */
  readonly exception: string | undefined;
  readonly summaryFailed: boolean;
  /** Servers that Hermes could not use. */
  readonly mcp: readonly { readonly server: string; readonly error: string }[];
  readonly messages: readonly Record<string, unknown>[] | undefined;
}

export interface ActivationEnd {
  readonly exit: ActivationExit;
  readonly claim: Claim | undefined;
}

export interface ActivationOptions {
  readonly runner: RunnerChannel;
  readonly home: string;
  readonly job: { readonly head: object; readonly body: Buffer };
  readonly model: ModelCalls;
  readonly mcp: McpCalls;
  readonly broker: Broker;
  readonly journal: Journal;
  readonly cancellation: Cancellation;
  /** Most that one tool command may take, whatever the model asks for. */
  readonly toolTimeoutS: number;
  /** Undefined: none. */
  readonly idleMs: number | undefined;
}

/** One run of Hermes in the runner host: its frames routed, until its process has ended. Rejects never. */
export class Activation {
  readonly #options: ActivationOptions;
  readonly #open = new Map<number, AbortController>();
  readonly #pending = new Set<Promise<void>>();
  #claim: Claim | undefined;
  #channel: ActivationChannel | undefined;
  #idle: { clear(): void } | undefined;

  constructor(options: ActivationOptions) {
    this.#options = options;
  }

  async run(): Promise<ActivationEnd> {
    const { runner, home, job, cancellation } = this.#options;
    const channel = runner.open(home, (line) => this.#receive(line));
    this.#channel = channel;
    const kill: { clear(): void }[] = [];
    using _stop = onAborted(cancellation.signal, () => {
      for (const request of this.#open.values()) request.abort(cancellation.signal.reason);
      channel.kill(SIGTERM);
      kill.push(longTimer(INTERRUPT_GRACE_MS, () => channel.kill(SIGKILL)));
    });
    this.#heard();
    channel.send(job.head, job.body);
    const exit = await channel.exited;
    this.#idle?.clear();
    for (const each of kill) each.clear();
    // Whoever still waits for an answer is gone; what the calls have to record they may record.
    for (const request of this.#open.values())
      request.abort(new FleetError('infra/runner_lost', 'the runner has ended'));
    await Promise.allSettled(this.#pending);
    return { exit, claim: this.#claim };
  }

  #receive(line: Line): void {
    this.#heard();
    const { head, body } = line;
    const id = head['id'];
    if (typeof id === 'number') {
      if (this.#open.size >= MAX_OPEN_REQUESTS) throw new Error(`over ${MAX_OPEN_REQUESTS} requests at once`);
      const work = this.#answer(id, head, body).finally(() => this.#pending.delete(work));
      this.#pending.add(work);
      return;
    }
    switch (head['op']) {
      case 'result':
        this.#claim = claimOf(head, body);
        return;
      case 'cancel': {
        const ref = Number(head['ref']);
        this.#open.get(ref)?.abort(new FleetError('cancelled/by_caller', 'the agent no longer waits for it'));
        this.#options.broker.cancel(ref);
        return;
      }
      case 'event': {
        const { op: _op, ...event } = head;
        const work = this.#options.journal
          .event(event)
          // A record that cannot be written is no record: the run ends, and says why.
          .catch((error: unknown) => this.#options.cancellation.abort(internalFault(error)))
          .finally(() => this.#pending.delete(work));
        this.#pending.add(work);
        return;
      }
      default:
        throw new Error(`unknown op ${JSON.stringify(head['op'])}`);
    }
  }

  async #answer(id: number, head: Line['head'], body: Buffer | undefined): Promise<void> {
    const request = new AbortController();
    this.#open.set(id, request);
    try {
      const { head: answer, body: answerBody } = await this.#act(id, head, body, request.signal);
      this.#heard();
      this.#channel?.send({ id, ...answer }, answerBody);
    } catch (error) {
      // The reason of the run's end, or of the sandbox's: the child is told to stop, an answer would only feed it.
      this.#options.cancellation.abort(internalFault(error));
    } finally {
      this.#open.delete(id);
    }
  }

  async #act(
    id: number,
    head: Line['head'],
    body: Buffer | undefined,
    signal: AbortSignal,
  ): Promise<{ readonly head: object; readonly body?: Buffer | undefined }> {
    const { model, mcp, broker, toolTimeoutS } = this.#options;
    const who = head['who'] as Who;
    const method = typeof head['method'] === 'string' ? head['method'] : '';
    switch (head['op']) {
      case 'model':
        return spread(await model.handle({ who, path: String(head['path']), method, body, signal }));
      case 'mcp':
        return spread(await mcp.handle({ who, server: String(head['server']), method, body, signal }));
      case 'exec': {
        const { timeout_s: timeout, cwd, stdin, cap } = head;
        const result = await broker.run({
          id,
          who,
          command: String(head['command']),
          cwd: typeof cwd === 'string' ? cwd : undefined,
          timeoutS: Math.min(typeof timeout === 'number' && timeout > 0 ? timeout : toolTimeoutS, toolTimeoutS),
          stdin: typeof stdin === 'string' ? stdin : undefined,
          isInternal: head['internal'] === true,
          cap: typeof cap === 'number' ? cap : 0,
        });
        return { head: { output: result.output, code: result.code, cwd: result.cwd ?? null } };
      }
      case 'kill':
        await broker.kill(Number(head['ref']));
        return { head: { killed: true } };
      case 'http':
        await this.#options.journal.event({ kind: 'http_refused', who, url: String(head['url']) });
        return {
          head: { status: 403, headers: { 'content-type': 'application/json' } },
          body: Buffer.from('{"error":{"message":"not granted"}}'),
        };
      default:
        throw new Error(`unknown op ${JSON.stringify(head['op'])}`);
    }
  }

  #heard(): void {
    const { idleMs, cancellation } = this.#options;
    if (idleMs === undefined) return;
    this.#idle?.clear();
    this.#idle = longTimer(idleMs, () =>
      cancellation.abort(new FleetError('incomplete/idle_time', `nothing was heard for ${idleMs / 1000} s`)),
    );
  }
}

/** A typed error as it is; any other is a fault of ours. */
function internalFault(error: unknown): FleetError {
  return error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error });
}

function spread(answer: HttpAnswer): { readonly head: object; readonly body: Buffer | undefined } {
  return { head: { status: answer.status, headers: answer.headers ?? {} }, body: answer.body };
}

function claimOf(head: Line['head'], body: Buffer | undefined): Claim {
  const optional = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined);
  const { messages } =
    body === undefined
      ? { messages: undefined }
      : (JSON.parse(body.toString()) as { messages?: Record<string, unknown>[] });
  return {
    status: String(head['status']),
    exitReason: optional(head['exit_reason']),
    error: optional(head['exception'] ?? head['error']),
    exception: optional(head['exception']),
    summaryFailed: head['summary_failed'] === true,
    mcp: Array.isArray(head['mcp']) ? (head['mcp'] as { server: string; error: string }[]) : [],
    messages: Array.isArray(messages) ? messages : undefined,
  };
}
