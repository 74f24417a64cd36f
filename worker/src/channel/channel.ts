import { FleetError, reasonOf } from '@hermes-fleet/shared';
import type { RunnerProcess, SandboxProvider } from '../sandbox/provider.ts';
import { encodeFrames, encodeLine, FRAME, frameParser, type Line, lineParser } from './frames.ts';

const PING_MS = 5_000;
/** Consumed bytes after which the child gets new credit; a quarter of its window of 1 MiB. */
const CREDIT_STEP = 262_144;
/** Bytes towards the runner host beyond which it is taken for dead: nothing we send is that large in sum. */
const MAX_QUEUED_BYTES = 256 * 1024 * 1024;
const SIGKILL = 9;

/** How one activation's process ended. */
export interface ActivationExit {
  /** Exit code; negative for a signal; null when the whole runner host was lost. */
  readonly rc: number | null;
  readonly oom: boolean;
  /** The last 4 KiB of the child's stderr, or what is known of the host's end. */
  readonly detail: string;
}

/** One activation in the runner host. */
export interface ActivationChannel {
  send(head: object, body?: Uint8Array): void;
  kill(signal: number): void;
  /** Settles once; never rejects. After it, no line comes any more. */
  readonly exited: Promise<ActivationExit>;
}

interface Activation {
  readonly onData: (chunk: Buffer) => void;
  readonly onExit: (exit: ActivationExit) => void;
}

export interface RunnerFacts {
  readonly hermes: string;
  readonly startedInMs: number;
}

/**
 * One runner host, seen from its worker: many activations over two byte streams. The parent there relays frames without
 * reading them; a child that floods is stopped by its credit, one that sends garbage is killed, and neither disturbs the others.
 */
export class RunnerChannel {
  readonly lost: Promise<string>;
  readonly facts: RunnerFacts;
  readonly #process: RunnerProcess;
  readonly #activations: Map<number, Activation>;
  readonly #ping: NodeJS.Timeout;
  #next = 1;
  #isLost = false;
  #onIdle: () => void = () => undefined;

  private constructor(process: RunnerProcess, activations: Map<number, Activation>, facts: RunnerFacts) {
    this.#process = process;
    this.#activations = activations;
    this.facts = facts;
    this.#ping = setInterval(() => this.#send(0, FRAME.ping), PING_MS);
    this.#ping.unref();
    this.lost = process.ended.then(({ reason, oom }) => {
      this.#isLost = true;
      clearInterval(this.#ping);
      for (const activation of activations.values()) activation.onExit({ rc: null, oom, detail: reason });
      activations.clear();
      return reason;
    });
  }

  /** @throws FleetError `infra/runner_start` when no host is ready in time */
  static async start(
    provider: Pick<SandboxProvider, 'launchRunner'>,
    options: { readonly signal: AbortSignal; readonly readyMs: number },
  ): Promise<RunnerChannel> {
    const begun = performance.now();
    const activations = new Map<number, Activation>();
    let log = '';
    let ready: (facts: Record<string, unknown>) => void;
    let broken: (error: Error) => void;
    const isReady = new Promise<Record<string, unknown>>((resolve, reject) => {
      ready = resolve;
      broken = reject;
    });
    const parse = frameParser((activation, kind, payload) => {
      if (kind === FRAME.ready) ready(JSON.parse(payload.toString()) as Record<string, unknown>);
      else if (kind === FRAME.data) activations.get(activation)?.onData(payload);
      else if (kind === FRAME.exit) {
        const exit = JSON.parse(payload.toString()) as { rc: number; stderr?: string; oom?: boolean };
        const ended = activations.get(activation);
        activations.delete(activation);
        ended?.onExit({ rc: exit.rc, oom: exit.oom === true, detail: exit.stderr ?? '' });
      }
    });
    let process: RunnerProcess | undefined;
    const onOutput = (chunk: Buffer): void => {
      try {
        parse(chunk);
      } catch (error) {
        broken(error instanceof Error ? error : new Error(String(error)));
        void process?.remove();
      }
    };
    process = await provider.launchRunner({
      signal: options.signal,
      onOutput,
      onLog: (text) => (log = (log + text).slice(-4096)),
    });
    let timer: NodeJS.Timeout | undefined;
    try {
      const facts = await Promise.race([
        isReady,
        process.ended.then(({ reason }) => {
          throw new Error(reason);
        }),
        new Promise<never>((_, reject) => {
          timer = setTimeout(() => reject(new Error(`not ready within ${options.readyMs} ms`)), options.readyMs);
        }),
      ]);
      return new RunnerChannel(process, activations, {
        hermes: typeof facts['hermes'] === 'string' ? facts['hermes'] : '',
        startedInMs: performance.now() - begun,
      });
    } catch (error) {
      await process.remove();
      throw new FleetError(
        'infra/runner_start',
        `the runner host did not start (${reasonOf(error)})${log === '' ? '' : `; it said: ${log.trim().slice(-1000)}`}`,
        { cause: error },
      );
    } finally {
      clearTimeout(timer);
    }
  }

  get isLost(): boolean {
    return this.#isLost;
  }

  /** Settles when no activation is open, for a host that gets no new ones. */
  async idle(): Promise<void> {
    while (this.#activations.size > 0 && !this.#isLost)
      await Promise.race([this.lost, new Promise<void>((resolve) => (this.#onIdle = resolve))]);
  }

  /** @param home stable name of the child's home; it may show up in prompts */
  open(home: string, onLine: (line: Line) => void): ActivationChannel {
    if (this.#isLost) throw new FleetError('infra/runner_lost', 'the runner host is gone');
    const id = this.#next++;
    let settle: (exit: ActivationExit) => void = () => undefined;
    const exited = new Promise<ActivationExit>((resolve) => (settle = resolve));
    let protocolError: string | undefined;
    let unacknowledged = 0;
    const parse = lineParser(onLine);
    const kill = (signal: number): void => this.#send(id, FRAME.kill, Buffer.of(signal));
    this.#activations.set(id, {
      onData: (chunk) => {
        if (protocolError !== undefined) return;
        try {
          parse(chunk);
        } catch (error) {
          protocolError = `the runner broke the protocol: ${reasonOf(error)}`;
          kill(SIGKILL);
          return;
        }
        unacknowledged += chunk.length;
        if (unacknowledged < CREDIT_STEP) return;
        const credit = Buffer.alloc(4);
        credit.writeUInt32BE(unacknowledged);
        unacknowledged = 0;
        this.#send(id, FRAME.credit, credit);
      },
      onExit: (exit) => {
        settle(protocolError === undefined ? exit : { ...exit, detail: protocolError });
        if (this.#activations.size === 0) this.#onIdle();
      },
    });
    this.#send(id, FRAME.open, Buffer.from(home));
    return { exited, kill, send: (head, body) => this.#send(id, FRAME.data, encodeLine(head, body)) };
  }

  /** Ends the host and every activation in it. */
  async close(): Promise<void> {
    clearInterval(this.#ping);
    await this.#process.remove();
    await this.lost;
  }

  #send(activation: number, kind: number, payload?: Uint8Array): void {
    if (this.#isLost) return;
    if (this.#process.queuedBytes > MAX_QUEUED_BYTES) {
      void this.#process.remove();
      return;
    }
    this.#process.write(encodeFrames(activation, kind, payload));
  }
}
