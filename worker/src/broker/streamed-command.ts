import { setTimeout as sleep } from 'node:timers/promises';
import { FleetError } from '@hermes-fleet/shared';
import { longTimer } from '../cancellation.ts';
import { lostSandbox, type Sandbox, type SandboxProcess } from '../sandbox/provider.ts';
import { CommandOutput } from './output.ts';

/** From the order to end to the moment when we no longer wait for the end. */
const KILL_GRACE_MS = 1_500;
/** How long a box that is being killed may look alive after its commands have ended. */
const DYING_MS = 300;
const DYING_PAUSE_MS = 100;
const TIMED_OUT = 124;
const INTERRUPTED = 130;
const KILLED = 137;
const CANNOT_RUN = 126;

/** A command that can be told to end, from before it has begun. */
export class Stoppable {
  #why: 'cancel' | 'timeout' | undefined;
  #stop: () => void = () => undefined;

  get why(): 'cancel' | 'timeout' | undefined {
    return this.#why;
  }

  /** The first reason stands. */
  stop(why: 'cancel' | 'timeout'): void {
    this.#why ??= why;
    this.#stop();
  }

  /** How to stop it, once it runs; at once when the order came before. */
  onStop(stop: () => void): void {
    this.#stop = stop;
    if (this.#why !== undefined) stop();
  }
}

export interface StreamedCommand {
  readonly sandbox: Sandbox;
  readonly argv: readonly string[];
  readonly user: string | undefined;
  readonly env: Readonly<Record<string, string>>;
  readonly marker: string;
  readonly cap: number;
  /** Undefined: stdin is the dead man's switch. */
  readonly stdin: Buffer | undefined;
  readonly timeoutMs: number;
  readonly stoppable: Stoppable;
  /** Kills by mark what has no switch. */
  readonly kill: () => Promise<void>;
  readonly signal: AbortSignal;
}

export interface CommandResult {
  readonly output: string;
  readonly code: number;
  readonly cwd: string | undefined;
  readonly bytes: number;
}

/**
 * Runs one wrapped command to its end marker: an exec ends when its shell does, not when the stream does, which a
 * background child may hold for as long as it lives.
 *
 * @throws FleetError `infra/sandbox_lost` or `infra/sandbox_exec` when its end was not seen
 */
export async function runStreamed(command: StreamedCommand): Promise<CommandResult> {
  const { sandbox, stdin, stoppable } = command;
  const output = new CommandOutput(command.marker, command.cap);
  let settle: (how: 'marker' | 'killed') => void = () => undefined;
  const settled = new Promise<'marker' | 'killed'>((resolve) => (settle = resolve));
  const process = await openProcess(command, (chunk) => {
    output.push(chunk);
    if (output.end !== undefined) settle('marker');
  });
  const killTimers: { clear(): void }[] = [];
  stoppable.onStop(() => {
    if (stdin === undefined) process.endInput();
    else void command.kill().catch(() => undefined);
    killTimers.push(longTimer(KILL_GRACE_MS, () => settle('killed')));
  });
  const timer = longTimer(command.timeoutMs, () => stoppable.stop('timeout'));
  try {
    if (stdin !== undefined) {
      await Promise.race([process.write(stdin), process.ended, settled]);
      process.endInput();
    }
    const how = await Promise.race([settled, process.ended.then(({ lost }) => lost ?? ('end' as const))]);
    const code = output.end?.code ?? (how === 'killed' ? KILLED : await codeOf(sandbox, process, how));
    return {
      ...finalOutput(output.text(), code, stoppable.why, command.timeoutMs),
      cwd: output.end?.cwd,
      bytes: output.bytes,
    };
  } finally {
    timer.clear();
    for (const each of killTimers) each.clear();
    process.destroy();
  }
}

async function openProcess(command: StreamedCommand, onOutput: (chunk: Buffer) => void): Promise<SandboxProcess> {
  const { sandbox, argv, user, env, signal } = command;
  if (sandbox.openProcess === undefined) throw new FleetError('infra/internal', 'the provider has no streamed exec');
  return await sandbox.openProcess({ argv, user, workdir: sandbox.workdir, env, signal, onOutput });
}

/** Exit code of a command without a marker: it replaced its shell, or was killed. */
async function codeOf(sandbox: Sandbox, process: SandboxProcess, how: 'end' | 'marker' | Error): Promise<number> {
  if (how instanceof Error) throw await lostError(sandbox, how);
  const code = await process.exitCode();
  if (code === undefined) throw await lostError(sandbox, new Error('the command ended without an exit code'));
  // A box that is killed takes its commands along, as if each had been killed; one that is about to start cannot be.
  if (code !== KILLED && code !== CANNOT_RUN) return code;
  for (let waitedMs = 0; waitedMs <= DYING_MS; waitedMs += DYING_PAUSE_MS) {
    if ((await sandbox.state()) !== 'running') throw await lostError(sandbox, new Error('killed with its sandbox'));
    await sleep(DYING_PAUSE_MS);
  }
  return code;
}

/** A stream that breaks: the sandbox is gone, or only the connection is. */
async function lostError(sandbox: Sandbox, cause: Error): Promise<FleetError> {
  const state = await sandbox.state();
  if (state === 'running')
    return new FleetError('infra/sandbox_exec', `the command's stream broke (${cause.message})`, { cause });
  return lostSandbox(state, cause);
}

/** What the agent is shown of a command that was ended, and its code then. */
export function finalOutput(
  text: string,
  code: number,
  why: 'cancel' | 'timeout' | undefined,
  timeoutMs: number,
): { readonly output: string; readonly code: number } {
  if (why === 'timeout') return { output: `${text}\n[Command timed out after ${timeoutMs / 1000}s]`, code: TIMED_OUT };
  if (why === 'cancel') return { output: `${text}\n[Command interrupted]`, code: INTERRUPTED };
  return { output: text, code };
}
