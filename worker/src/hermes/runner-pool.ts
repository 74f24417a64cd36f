import { FleetError, reasonOf } from '@hermes-fleet/shared';
import { Cancellation, untilAborted } from '../cancellation.ts';
import { RunnerChannel } from '../channel/channel.ts';
import type { Log } from '../log.ts';
import type { SandboxProvider } from '../sandbox/provider.ts';

const READY_MS = 120_000;
/** Pauses between tries of a host that does not start. */
const RETRY_MS = { first: 1000, longest: 60_000 } as const;

interface Host {
  readonly channel: Promise<RunnerChannel>;
  served: number;
}

/**
 * The runner host of this worker on one engine: started with the first activation (or ahead, by `warm`), replaced when it
 * is lost or has served its share. A replaced one ends when its last activation has.
 */
export class RunnerPool {
  readonly #provider: SandboxProvider;
  readonly #log: Log;
  readonly #activationsPerHost: number;
  #current: Host | undefined;
  readonly #retired = new Set<RunnerChannel>();
  // A host serves many: the activation that needed it first must not take it down with it.
  readonly #closing = new Cancellation();
  #problem: string | undefined = 'the runner host has not started yet';
  #onChange: () => void = () => undefined;
  #retry: NodeJS.Timeout | undefined;
  #retryMs: number = RETRY_MS.first;

  constructor(provider: SandboxProvider, options: { readonly activations: number }, log: Log) {
    this.#provider = provider;
    this.#activationsPerHost = options.activations;
    this.#log = log;
  }

  /** Why no activation can run here; undefined when one can. A worker that cannot run any must not take any. */
  get problem(): string | undefined {
    return this.#problem;
  }

  /** Starts a host ahead, and goes on trying until there is one. @param onChange called when `problem` comes or goes */
  warm(onChange: () => void): void {
    this.#onChange = onChange;
    this.#replace(undefined);
  }

  /** @throws FleetError `infra/runner_start`, with what the host said */
  async acquire(signal: AbortSignal): Promise<RunnerChannel> {
    const current = this.#current;
    if (current !== undefined && current.served < this.#activationsPerHost) {
      const channel = await untilAborted(signal, current.channel);
      if (!channel.isLost) {
        current.served++;
        return channel;
      }
    }
    if (this.#current === current) this.#replace(current);
    return await this.acquire(signal);
  }

  async close(): Promise<void> {
    this.#closing.abort(new FleetError('internal/drain', 'the worker is closing'));
    clearTimeout(this.#retry);
    const current = this.#current;
    this.#current = undefined;
    const channel = await current?.channel.catch(() => undefined);
    await Promise.all([channel, ...this.#retired].map(async (each) => await each?.close()));
  }

  #replace(old: Host | undefined): void {
    const started = RunnerChannel.start(this.#provider, { signal: this.#closing.signal, readyMs: READY_MS });
    const next: Host = { channel: started, served: 0 };
    this.#current = next;
    started.then(
      (channel) => {
        this.#log.info(
          { hermes: channel.facts.hermes, duration_ms: Math.round(channel.facts.startedInMs) },
          'runner host started',
        );
        this.#retryMs = RETRY_MS.first;
        this.#is(undefined);
        void channel.lost.then((reason) => {
          this.#retired.delete(channel);
          this.#log.info({ reason }, 'runner host ended');
        });
      },
      (error: unknown) => {
        if (this.#current === next) this.#current = undefined;
        if (this.#closing.signal.aborted) return;
        this.#is(reasonOf(error));
        this.#retryLater();
      },
    );
    if (old !== undefined) void this.#retire(old.channel);
  }

  #is(problem: string | undefined): void {
    if (problem !== undefined)
      this.#log.error({ reason: problem }, 'no runner host: no session is taken until there is one');
    const hasChanged = (problem === undefined) !== (this.#problem === undefined);
    this.#problem = problem;
    if (hasChanged) this.#onChange();
  }

  #retryLater(): void {
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => {
      if (this.#current === undefined) this.#replace(undefined);
    }, this.#retryMs);
    this.#retry.unref();
    this.#retryMs = Math.min(RETRY_MS.longest, 2 * this.#retryMs);
  }

  async #retire(starting: Promise<RunnerChannel>): Promise<void> {
    const channel = await starting.catch(() => undefined);
    if (channel === undefined || channel.isLost) return;
    this.#retired.add(channel);
    await channel.idle();
    await channel.close();
  }
}
