import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { constants } from 'node:os';
import { FleetError, reasonOf } from '@hermes-fleet/shared';
import { longTimer, onAborted, reasonOfAbort } from '../cancellation.ts';
import { killGroup, killMarked, trackGroup } from './local-kill.ts';
import type { BlockingExecOptions, ExecOptions, ExecResult, OutputListener, SandboxProcess } from './provider.ts';

const CANNOT_RUN = 126;
const NOT_FOUND = 127;
const SIGNALLED = 128;
/** How long a child that has ended may leave its streams to a background one before we let go of them. */
const HELD_STREAM_MS = 2_000;

export interface LocalCommand {
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  /** `NAME=value`: variables of everything that the command starts, by which it is found again. The first is the box's. */
  readonly marks: readonly [string, ...string[]];
}

function start(options: ExecOptions, { cwd, env, marks }: LocalCommand): ChildProcessWithoutNullStreams {
  if (options.signal.aborted) throw reasonOfAbort(options.signal);
  const [program = 'true', ...args] = options.argv;
  if (!existsSync(cwd)) throw new FleetError('infra/sandbox_exec', `the folder ${cwd} is not there`);
  try {
    const child = spawn(program, args, {
      cwd,
      env: { ...env, ...options.env, ...Object.fromEntries(marks.map((mark) => mark.split('='))) },
      // A group of its own, so that a signal for it does not reach the worker.
      detached: true,
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    trackGroup(marks[0], child.pid);
    // Input for a command that has ended is dropped.
    child.stdin.on('error', () => undefined);
    return child;
  } catch (error) {
    throw new FleetError('infra/sandbox_exec', `${program} cannot be started (${reasonOf(error)})`, { cause: error });
  }
}

const exitCode = (code: number | null, signal: NodeJS.Signals | null): number =>
  code ?? SIGNALLED + (signal === null ? constants.signals.SIGKILL : constants.signals[signal]);

/** What a shell would say of a program that cannot be started. */
function codeOfFailure(error: NodeJS.ErrnoException): number {
  if (error.code === 'ENOENT') return NOT_FOUND;
  if (error.code === 'EACCES' || error.code === 'ENOEXEC') return CANNOT_RUN;
  throw new FleetError('infra/sandbox_exec', `a command cannot be started (${error.message})`, { cause: error });
}

class Collector {
  readonly #chunks: Buffer[] = [];
  readonly #maxBytes: number;
  bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  push(chunk: Buffer): void {
    if (this.bytes < this.#maxBytes) this.#chunks.push(chunk.subarray(0, this.#maxBytes - this.bytes));
    this.bytes += chunk.length;
  }

  get kept(): Buffer {
    return Buffer.concat(this.#chunks);
  }
}

/** The code once the child has ended and its output is read, or held by a background child for a moment. */
async function codeOf(child: ChildProcessWithoutNullStreams, stderr: Collector): Promise<number> {
  return await new Promise<number>((resolve, reject) => {
    child.once('error', (error) => {
      stderr.push(Buffer.from(error.message));
      try {
        resolve(codeOfFailure(error));
      } catch (failure) {
        reject(failure);
      }
    });
    child.once('exit', (exit, signal) => {
      const done = (): void => resolve(exitCode(exit, signal));
      child.once('close', done);
      setTimeout(done, HELD_STREAM_MS).unref();
    });
  });
}

/** Runs a child process to its end. A background child that holds its streams does not delay it. */
export async function runLocal(options: BlockingExecOptions, command: LocalCommand): Promise<ExecResult> {
  const own = `HF_KILL=${randomBytes(9).toString('hex')}`;
  const child = start(options, { ...command, marks: [...command.marks, own] });
  const [stdout, stderr] = [new Collector(options.maxBytes), new Collector(options.maxBytes)];
  child.stdout.on('data', (chunk: Buffer) => stdout.push(chunk));
  child.stderr.on('data', (chunk: Buffer) => stderr.push(chunk));
  child.stdin.end(options.stdin);
  let killing: Promise<void> | undefined;
  const kill = (): void => {
    killGroup(child.pid);
    killing ??= killMarked(own);
  };
  using _stop = onAborted(options.signal, kill);
  const timer = longTimer(options.deadlineMs, kill);
  try {
    const code = await codeOf(child, stderr);
    await killing;
    if (options.signal.aborted) throw reasonOfAbort(options.signal);
    return {
      exitCode: code,
      stdout: stdout.kept,
      stderr: stderr.kept,
      stdoutBytes: stdout.bytes,
      stderrBytes: stderr.bytes,
    };
  } finally {
    timer.clear();
    child.stdout.destroy();
    child.stderr.destroy();
  }
}

/** Starts a child process whose streams are the caller's. */
export async function openLocal(
  options: ExecOptions & { readonly onOutput: OutputListener },
  command: LocalCommand,
): Promise<SandboxProcess> {
  const child = start(options, command);
  child.stdout.on('data', (chunk: Buffer) => options.onOutput(chunk, 'stdout'));
  child.stderr.on('data', (chunk: Buffer) => options.onOutput(chunk, 'stderr'));
  let code: number | undefined;
  child.once('exit', (exit, signal) => (code = exitCode(exit, signal)));
  let drop: () => void = () => undefined;
  const ended = new Promise<{ lost: Error | undefined }>((resolve) => {
    child.once('close', () => resolve({ lost: undefined }));
    drop = () => resolve({ lost: new Error('its streams were dropped') });
  });
  await new Promise<void>((resolve, reject) => {
    child.once('spawn', resolve);
    child.once('error', (cause) =>
      reject(new FleetError('infra/sandbox_exec', `${options.argv[0] ?? ''} cannot be started`, { cause })),
    );
  });
  return {
    write: async (data) => {
      if (child.stdin.destroyed || child.stdin.write(data)) return;
      await Promise.race([new Promise<void>((resolve) => child.stdin.once('drain', resolve)), ended]);
    },
    endInput: () => child.stdin.end(),
    pause: () => {
      child.stdout.pause();
      child.stderr.pause();
    },
    resume: () => {
      child.stdout.resume();
      child.stderr.resume();
    },
    ended,
    exitCode: async () => code,
    destroy: () => {
      child.stdin.destroy();
      child.stdout.destroy();
      child.stderr.destroy();
      drop();
    },
  };
}
