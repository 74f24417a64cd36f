import { FleetError } from '@hermes-fleet/shared';
import { Cancellation, untilAborted } from '../cancellation.ts';
import { RunnerChannel } from '../channel/channel.ts';
import type { Log } from '../log.ts';
import type { SandboxProvider } from '../sandbox/provider.ts';

const READY_MS = 120_000;

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

  constructor(provider: SandboxProvider, options: { readonly activations: number }, log: Log) {
    this.#provider = provider;
    this.#activationsPerHost = options.activations;
    this.#log = log;
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
        void channel.lost.then((reason) => {
          this.#retired.delete(channel);
          this.#log.info({ reason }, 'runner host ended');
        });
      },
      () => {
        // The caller of acquire has the error; the next one tries again.
        if (this.#current === next) this.#current = undefined;
      },
    );
    if (old !== undefined) void this.#retire(old.channel);
  }

  async #retire(starting: Promise<RunnerChannel>): Promise<void> {
    const channel = await starting.catch(() => undefined);
    if (channel === undefined || channel.isLost) return;
    this.#retired.add(channel);
    await channel.idle();
    await channel.close();
  }
}
