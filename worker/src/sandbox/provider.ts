import { FleetError } from '@hermes-fleet/shared';

/**
 * What the fleet asks of a place that runs sandboxes. A provider is a factory that returns an object; an ability that it
 * lacks is an absent method. `test/conformance/provider.ts` is the contract in executable form.
 */

/** A sandbox to make. Specs never choose binds, privileges, devices or host networks. */
export interface SandboxSpec {
  /** Lease member `<session digest>.<nonce>`: the one name of this sandbox everywhere. */
  readonly name: string;
  /** Digest of the session id. */
  readonly sessionKey: string;
  readonly image: string;
  readonly workdir: string;
  readonly user: string | undefined;
  readonly env: Readonly<Record<string, string>>;
  readonly network: 'none' | 'open';
  readonly limits: { readonly cpus: number; readonly memoryMib: number; readonly pids: number };
  /** Hermes is to run inside of it: the packed one is at hand there, read-only. */
  readonly hasHermes: boolean;
  /** Seconds since the epoch after which anyone may remove it, whatever Redis says. */
  readonly expiresAtS: number;
}

/** Options of one command in a sandbox. Every method takes a signal, and is raced by the provider's own deadline. */
export interface ExecOptions {
  readonly argv: readonly string[];
  readonly user?: string | undefined;
  readonly workdir?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly signal: AbortSignal;
}

export interface BlockingExecOptions extends ExecOptions {
  readonly stdin?: Uint8Array | undefined;
  /** Bytes kept of stdout and of stderr, each; what is beyond is counted and dropped. */
  readonly maxBytes: number;
  readonly deadlineMs: number;
}

export interface ExecResult {
  /** Exit code; 128 + n for signal n. Never a guess: a command whose end was not seen throws `infra/sandbox_exec`. */
  readonly exitCode: number;
  readonly stdout: Buffer;
  readonly stderr: Buffer;
  /** Bytes that the command wrote to stdout and stderr, kept or not. */
  readonly stdoutBytes: number;
  readonly stderrBytes: number;
}

/** A command whose streams are ours while it runs. */
export interface SandboxProcess {
  /** Resolves when the bytes are handed on; waits where the other side does not read. */
  write(data: Uint8Array): Promise<void>;
  /** Closes the command's stdin: for a command under a dead man's switch, the order to end. */
  endInput(): void;
  /** Stops reading output, so that the command blocks once the pipes are full. */
  pause(): void;
  resume(): void;
  /** Settles when both output streams are at their end, or the connection is gone; never rejects. */
  readonly ended: Promise<{ readonly lost: Error | undefined }>;
  /** The exit code, once the command has ended; undefined while it runs. */
  exitCode(): Promise<number | undefined>;
  /** Drops the streams. Does not kill the command. */
  destroy(): void;
}

export type OutputListener = (chunk: Buffer, stream: 'stdout' | 'stderr') => void;

export interface SandboxFile {
  /** Absolute, or relative to the workdir. */
  readonly path: string;
  readonly content: Uint8Array;
}

export interface FetchedFile {
  readonly path: string;
  /** At most `maxBytes`, from the start; undefined when there is no regular file of that name. */
  readonly content: Buffer | undefined;
  /** True size in bytes, 0 when it is missing. */
  readonly size: number;
  /** Why there is no content: missing, a link, a directory. */
  readonly problem?: string;
}

export interface SandboxUsage {
  readonly cpuTimeS: number | undefined;
  readonly peakMemoryMib: number | undefined;
  readonly oomKills: number | undefined;
}

/** `restarted`: it runs, but is not what it was: what ran in it is gone. `out_of_memory`: the kernel ended it. */
export type SandboxState = 'running' | 'paused' | 'restarted' | 'stopped' | 'out_of_memory' | 'gone';

/** Whether a failure says that there is no sandbox any more. */
export const isLostSandbox = ({ code }: FleetError): boolean =>
  code === 'infra/sandbox_lost' || code === 'infra/sandbox_oom';

/** What it means that a sandbox is in another state than running. */
export function lostSandbox(state: Exclude<SandboxState, 'running'>, cause?: unknown): FleetError {
  if (state === 'out_of_memory')
    return new FleetError('infra/sandbox_oom', 'the sandbox ran out of memory, and was ended for it', { cause });
  return new FleetError('infra/sandbox_lost', `the sandbox is ${state}`, { cause });
}

/** The shell that a box has, or was given. */
export interface SandboxShell {
  /** Absolute path, or a name on the image's PATH. */
  readonly path: string;
  readonly isBash: boolean;
  /** Folder of the tools that the box was given; to be appended to PATH. */
  readonly pathSuffix: string | undefined;
}

/** A Python with the pinned Hermes in a box, and the runner's own code. */
export interface HermesInBox {
  /** Command line of the interpreter, to be followed by its arguments. */
  readonly python: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** Folder of `host.py`. */
  readonly runner: string;
}

/** One box, as one worker sees it. Holding it is not owning it: the lease in Redis is. */
export interface Sandbox {
  readonly name: string;
  /** The provider's own id, as it appears in observations. */
  readonly id: string;
  /** Absolute path that commands start in. */
  readonly workdir: string;
  readonly shell: SandboxShell;
  /** Folder for files of ours that goes with the box; `/tmp` when left out, which a box has to itself. */
  readonly temporary?: string;
  /** What `connect` needs to find it again, from any worker of the same engine. Plain JSON. */
  readonly descriptor: Readonly<Record<string, unknown>>;
  /** @throws FleetError `infra/sandbox_lost` when the box is gone, `infra/sandbox_exec` when the command could not be run */
  exec(options: BlockingExecOptions): Promise<ExecResult>;
  /** Absent where the provider has nothing but a blocking exec. */
  openProcess?(options: ExecOptions & { readonly onOutput: OutputListener }): Promise<SandboxProcess>;
  /** Writes regular files, making folders on the way. */
  putFiles(
    files: readonly SandboxFile[],
    options: { readonly signal: AbortSignal; readonly deadlineMs: number; readonly user?: string | undefined },
  ): Promise<void>;
  /** Reads regular files; follows no link out of them, and never more than `maxBytes` in all. */
  getFiles(
    paths: readonly string[],
    options: { readonly signal: AbortSignal; readonly deadlineMs: number; readonly maxBytes: number },
  ): Promise<FetchedFile[]>;
  /**
   * Has the packed Hermes ready in the box, or the runner's own code alone: mounted already, or put there now. Absent where
   * the provider cannot, and on boxes of `connect`.
   *
   * @throws FleetError `infra/runner_start`
   */
  giveHermes?(part: 'all' | 'runner', options: { readonly signal: AbortSignal }): Promise<HermesInBox>;
  /** @param options `countsOom`: also how often the kernel killed a process in it for want of memory, which costs a command */
  usage?(options?: { readonly countsOom: boolean }): Promise<SandboxUsage>;
  state(): Promise<SandboxState>;
  /**
   * Removes an owned box and all that runs in it; a box that is gone already is success. A borrowed one is only let go of:
   * no call of ours ever stops or removes it.
   */
  remove(): Promise<void>;
}

/** A box that the engine has, found by the fleet's labels: what the reaper judges. */
export interface ListedSandbox {
  readonly name: string;
  readonly sessionKey: string;
  readonly expiresAtS: number;
  remove(): Promise<void>;
}

export interface SandboxProvider {
  /** `docker`, `local`: the word of a seed's `sandbox.provider`. */
  readonly kind: string;
  /** What integrity a result can claim at most: `captured` needs the runner out of reach of the tools. */
  readonly isolates: boolean;
  /** Id of the engine behind it, the same for every worker on that engine. @throws FleetError `infra/engine_lost` */
  engineId(): Promise<string>;
  /** Whether the engine answers, within its own deadline. */
  ping(): Promise<boolean>;
  /**
   * Makes and starts a box; a half-made one is removed before the error leaves.
   *
   * @throws FleetError `infra/sandbox_image`, `infra/sandbox_limit`, `infra/sandbox_disk`, `infra/sandbox_create`
   */
  create(spec: SandboxSpec, options: { readonly signal: AbortSignal }): Promise<Sandbox>;
  /**
   * Opens a box that somebody else owns, by the descriptor of its owner. Absent where there is nothing to borrow.
   *
   * @throws FleetError `infra/sandbox_lost` when there is no such box or it does not run, `infra/sandbox_no_shell`
   */
  borrow?(
    access: { readonly descriptor: Readonly<Record<string, unknown>>; readonly workdir: string },
    options: { readonly signal: AbortSignal },
  ): Promise<Sandbox>;
  /** Finds a box of `create` or `borrow` again. @throws FleetError `infra/sandbox_lost` when it is gone, stopped or was restarted */
  connect(descriptor: Readonly<Record<string, unknown>>, options: { readonly signal: AbortSignal }): Promise<Sandbox>;
  /** Every box of this fleet on the engine, whatever made it, running or not. */
  list(): Promise<ListedSandbox[]>;
  /** Starts the trusted process that Hermes lives in; undefined methods: this provider has none. */
  launchRunner(options: {
    readonly signal: AbortSignal;
    readonly onOutput: (chunk: Buffer) => void;
    readonly onLog: (text: string) => void;
  }): Promise<RunnerProcess>;
  /** Lets go of connections. Removes nothing. */
  close(): Promise<void>;
}

/** The runner host as a process: two byte streams and an end. It ends by itself when the worker's side of stdin is gone. */
export interface RunnerProcess {
  write(data: Uint8Array): void;
  /** Bytes handed to `write` that the runner has not taken yet. */
  readonly queuedBytes: number;
  /** Settles once, with what is known of the end; never rejects. */
  readonly ended: Promise<{ readonly reason: string; readonly oom: boolean }>;
  /** Makes an end of it and of all its children. */
  remove(): Promise<void>;
}
