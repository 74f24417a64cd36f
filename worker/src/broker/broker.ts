import { randomBytes } from 'node:crypto';
import { FleetError, reasonOf } from '@hermes-fleet/shared';
import type { Journal } from '../capture/journal.ts';
import type { Who } from '../capture/model-calls.ts';
import { wellFormed } from '../command.ts';
import { isLostSandbox, lostSandbox, type Sandbox } from '../sandbox/provider.ts';
import { CommandOutput } from './output.ts';
import { ResidentShell } from './resident-shell.ts';
import { killByMark, stateFolder, takeOver, wrapCommand } from './shell-wrapper.ts';
import { type CommandResult, finalOutput, runStreamed, Stoppable } from './streamed-command.ts';

const DEFAULT_CAP_BYTES = 1024 * 1024;
const INTERNAL_CAP_BYTES = 16 * 1024 * 1024;
/** A here-document is read byte by byte by bash; larger input goes over an exec's own stdin. */
const HEREDOC_BYTES = 64 * 1024;
const CONTROL_MS = 15_000;
const TIMED_OUT = 124;
const STALE = 125;
const KILLED = 137;

export interface ToolCommand {
  readonly id: number;
  readonly who: Who;
  readonly command: string;
  readonly cwd: string | undefined;
  readonly timeoutS: number;
  readonly stdin: string | undefined;
  /** Made by Hermes for a file tool; may use the resident shell. */
  readonly isInternal: boolean;
  readonly cap: number;
}

export interface ToolResult {
  readonly output: string;
  readonly code: number;
  readonly cwd: string | undefined;
}

export interface BrokerOptions {
  readonly sandbox: Sandbox;
  readonly journal: Journal;
  readonly sessionKey: string;
  readonly number: string;
  readonly epoch: string;
  readonly user: string | undefined;
  readonly signal: AbortSignal;
}

/** Runs the agent's commands in the task sandbox: bounded, recorded, and killed with everything that they started. */
export class Broker implements AsyncDisposable {
  readonly #options: BrokerOptions;
  readonly #folder: string;
  readonly #activation: string;
  readonly #running = new Map<number, Stoppable>();
  readonly #idle: ResidentShell[] = [];
  #failure: FleetError | undefined;

  constructor(options: BrokerOptions) {
    this.#options = options;
    this.#folder = stateFolder(options.sessionKey, options.sandbox.temporary);
    this.#activation = `${options.sessionKey.slice(0, 12)}.${options.number}.${options.epoch}`;
  }

  /** Why the sandbox can no longer be used; undefined while it can. */
  get failure(): FleetError | undefined {
    return this.#failure;
  }

  /** Must come first: stops what an earlier owner left, and refuses to follow a newer one. @throws FleetError `internal/fenced` */
  async takeOver(): Promise<void> {
    const { sandbox, sessionKey, number, epoch, signal, user } = this.#options;
    const script = takeOver({
      stateFolder: this.#folder,
      epoch,
      runs: `${sessionKey.slice(0, 12)}.${number}.`,
      activation: this.#activation,
    });
    const result = await sandbox.exec({
      argv: this.#shell(script),
      user,
      signal,
      maxBytes: 4096,
      deadlineMs: CONTROL_MS,
    });
    if (result.exitCode === STALE) throw new FleetError('internal/fenced', 'a newer owner is at work in the sandbox');
  }

  /** Runs one command of the agent. Rejects only with the reason of the signal. */
  async run(command: ToolCommand): Promise<ToolResult> {
    const { journal, signal } = this.#options;
    const running = new Stoppable();
    this.#running.set(command.id, running);
    const act = journal.nextAct();
    const begun = performance.now();
    try {
      const [text] = await journal.store([JSON.stringify({ command: command.command, stdin: command.stdin ?? null })]);
      await journal.begin('tool', act, {
        who: command.who,
        text,
        cwd: command.cwd ?? null,
        timeout_s: command.timeoutS,
        internal: command.isInternal,
      });
      const result = await this.#execute(command, running);
      const [output] = await journal.store([JSON.stringify(result.output)]);
      await journal.end('tool', act, {
        code: result.code,
        output,
        bytes: result.bytes,
        status: running.why ?? 'completed',
        ms: Math.round(performance.now() - begun),
      });
      return { output: result.output, code: result.code, cwd: result.cwd };
    } catch (error) {
      signal.throwIfAborted();
      const failure = await this.#failureOf(error);
      if (isLostSandbox(failure) || failure.code === 'infra/engine_lost') this.#failure = failure;
      await journal.end('tool', act, {
        code: null,
        status: 'lost',
        error: failure.code,
        reason: failure.message,
        ms: Math.round(performance.now() - begun),
      });
      if (this.#failure !== undefined) throw failure;
      return { output: `[the command could not be run: ${failure.message}]`, code: 126, cwd: undefined };
    } finally {
      this.#running.delete(command.id);
    }
  }

  /** The runner no longer waits for a command. */
  cancel(id: number): void {
    this.#running.get(id)?.stop('cancel');
  }

  /** Kills the background process that command `id` started, with all its children. */
  async kill(id: number): Promise<void> {
    await this.#control(killByMark(`HF_EXEC=${this.#mark(id)}`, '$$'), this.#idle.pop());
  }

  /** Ends every command and every process of this activation. */
  async killAll(): Promise<void> {
    for (const running of this.#running.values()) running.stop('cancel');
    // Not by a resident shell: they are among those that are killed.
    for (const shell of this.#idle.splice(0)) shell.close();
    await this.#control(killByMark(`HF_ACT=${this.#activation}`, '$$'), undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const running of this.#running.values()) running.stop('cancel');
    for (const shell of this.#idle.splice(0)) shell.close();
  }

  /** That a command cannot be run may be because its sandbox is no longer what it was. */
  async #failureOf(cause: unknown): Promise<FleetError> {
    const failure =
      cause instanceof FleetError ? cause : new FleetError('infra/sandbox_exec', reasonOf(cause), { cause });
    if (failure.code !== 'infra/sandbox_exec' && failure.code !== 'infra/sandbox_lost') return failure;
    const state = await this.#options.sandbox.state().catch(() => 'running' as const);
    return state === 'running' ? failure : lostSandbox(state, cause);
  }

  async #execute(command: ToolCommand, running: Stoppable): Promise<CommandResult> {
    const { sandbox } = this.#options;
    const stdin = command.stdin === undefined ? undefined : Buffer.from(wellFormed(command.stdin));
    if (sandbox.openProcess === undefined) return await this.#blocking(command, stdin);
    if (command.isInternal && (stdin?.length ?? 0) <= HEREDOC_BYTES) {
      const result = await this.#resident(command, stdin, running);
      if (result !== undefined) return result;
    }
    return await this.#streamed(command, stdin, running);
  }

  async #streamed(command: ToolCommand, stdin: Buffer | undefined, stoppable: Stoppable): Promise<CommandResult> {
    const { sandbox, user, signal } = this.#options;
    const marker = newMarker();
    return await runStreamed({
      sandbox,
      argv: this.#wrapped(command, marker, stdin === undefined),
      user,
      env: this.#marks(command.id),
      marker,
      cap: this.#cap(command),
      stdin,
      timeoutMs: command.timeoutS * 1000,
      stoppable,
      kill: async () => await this.kill(command.id),
      signal,
    });
  }

  /** Without streams: no switch and no cancel, but the deadline and the marker all the same. */
  async #blocking(command: ToolCommand, stdin: Buffer | undefined): Promise<CommandResult> {
    const { sandbox, user, signal } = this.#options;
    const marker = newMarker();
    const output = new CommandOutput(marker, this.#cap(command));
    const begun = performance.now();
    const result = await sandbox.exec({
      argv: this.#wrapped(command, marker, false),
      user,
      workdir: sandbox.workdir,
      env: this.#marks(command.id),
      stdin,
      signal,
      maxBytes: INTERNAL_CAP_BYTES,
      deadlineMs: command.timeoutS * 1000,
    });
    output.push(result.stdout);
    // What is beyond it was dropped, and the end marker with it.
    const dropped = result.stdoutBytes - result.stdout.length;
    const text =
      dropped > 0 ? `${output.text()}\n\n... [OUTPUT TRUNCATED - ${dropped} bytes omitted] ...` : output.text();
    const isLate = result.exitCode === KILLED && performance.now() - begun >= command.timeoutS * 1000;
    const code = output.end?.code ?? result.exitCode;
    return {
      ...finalOutput(text, code, isLate ? 'timeout' : undefined, command.timeoutS * 1000),
      cwd: output.end?.cwd,
      bytes: output.bytes + dropped,
    };
  }

  async #resident(
    command: ToolCommand,
    stdin: Buffer | undefined,
    stoppable: Stoppable,
  ): Promise<CommandResult | undefined> {
    const { sandbox, user, signal } = this.#options;
    const shell =
      this.#idle.pop() ?? (await ResidentShell.open(sandbox, { user, env: { HF_ACT: this.#activation }, signal }));
    if (shell === undefined) return undefined;
    if (shell.isBroken) {
      // It was open and idle: somebody killed it, or all that ran in the sandbox is gone.
      if ((await sandbox.state()) === 'running') return undefined;
      throw new FleetError('infra/sandbox_exec', 'the resident shell of the sandbox is gone');
    }
    if (stoppable.why !== undefined) {
      this.#idle.push(shell);
      return { ...finalOutput('', KILLED, stoppable.why, 0), cwd: undefined, bytes: 0 };
    }
    stoppable.onStop(() => void this.kill(command.id).catch(() => undefined));
    const result = await shell.run({
      command: command.command,
      cwd: command.cwd ?? sandbox.workdir,
      stdin,
      timeoutMs: command.timeoutS * 1000,
      maxBytes: INTERNAL_CAP_BYTES,
      env: this.#marks(command.id),
    });
    if (result === undefined) {
      await this.kill(command.id);
      return {
        output: `[timed out after ${command.timeoutS} s, or over ${INTERNAL_CAP_BYTES} bytes of output]`,
        code: TIMED_OUT,
        cwd: undefined,
        bytes: 0,
      };
    }
    this.#idle.push(shell);
    const { output, code } = result;
    return { ...finalOutput(output.toString(), code, stoppable.why, 0), cwd: undefined, bytes: output.length };
  }

  /** A command of our own, in `shell` where there is one. A box that is gone has nothing left to kill. */
  async #control(script: string, shell: ResidentShell | undefined): Promise<void> {
    const { sandbox, user } = this.#options;
    try {
      if (shell !== undefined && (await this.#inResident(shell, script))) return;
      await sandbox.exec({
        argv: this.#shell(script),
        user,
        signal: AbortSignal.timeout(CONTROL_MS),
        maxBytes: 4096,
        deadlineMs: CONTROL_MS,
      });
    } catch (error) {
      if ((await sandbox.state()) === 'running') throw error;
    }
  }

  async #inResident(shell: ResidentShell, script: string): Promise<boolean> {
    const limits = { timeoutMs: CONTROL_MS, maxBytes: 65_536 };
    try {
      const done = await shell.run({ command: script, cwd: '/', stdin: undefined, env: {}, ...limits });
      if (done !== undefined) this.#idle.push(shell);
      return done !== undefined;
    } catch {
      // It is gone; an exec does it.
      return false;
    }
  }

  #wrapped(command: ToolCommand, marker: string, hasSwitch: boolean): string[] {
    const { sandbox, epoch } = this.#options;
    const text = wrapCommand({
      command: command.command,
      cwd: command.cwd ?? sandbox.workdir,
      stateFolder: this.#folder,
      marker,
      activation: this.#activation,
      exec: this.#mark(command.id),
      epoch,
      pathSuffix: sandbox.shell.pathSuffix,
      hasSwitch,
    });
    return this.#shell(text);
  }

  #shell(script: string): string[] {
    const { path, pathSuffix } = this.#options.sandbox.shell;
    return [path, '-c', pathSuffix === undefined ? script : `PATH=$PATH:${pathSuffix}; export PATH\n${script}`];
  }

  #mark(id: number): string {
    // Ends with a delimiter, so that command 1 is not found in command 12.
    return `${this.#activation}.${id}_`;
  }

  #marks(id: number): Record<string, string> {
    return { HF_ACT: this.#activation, HF_EXEC: this.#mark(id) };
  }

  #cap(command: ToolCommand): number {
    return command.cap > 0 ? command.cap : DEFAULT_CAP_BYTES;
  }
}

const newMarker = (): string => `__HF_${randomBytes(12).toString('hex')}__`;
