import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import { longTimer, onAborted } from '../cancellation.ts';
import { dockerCall, statusOf } from './docker-call.ts';
import { readMultiplexed } from './docker-streams.ts';
import type { BlockingExecOptions, ExecOptions, ExecResult, OutputListener, SandboxProcess } from './provider.ts';

/** How long a command that has ended may leave its stream to a background child. */
const HELD_STREAM_MS = 2_000;
const INSPECT_MS = 10_000;
const FIRST_PAUSE_MS = 25;
const LONGEST_PAUSE_MS = 1_000;
/** How long a command may outlive its kill, before that is an error. */
const END_MS = 10_000;
const NOT_FOUND = 404;

interface OpenExec {
  readonly exec: Docker.Exec;
  readonly connection: Duplex;
}

async function open(container: Docker.Container, options: ExecOptions): Promise<OpenExec> {
  const { argv, user, workdir, env, signal } = options;
  const call = { what: 'running a command in the sandbox', code: 'infra/sandbox_exec' } as const;
  const exec = await dockerCall(
    { ...call, signal },
    async () =>
      await container.exec({
        Cmd: [...argv],
        AttachStdout: true,
        AttachStderr: true,
        AttachStdin: true,
        ...(user === undefined ? {} : { User: user }),
        ...(workdir === undefined ? {} : { WorkingDir: workdir }),
        ...(env === undefined ? {} : { Env: Object.entries(env).map(([name, value]) => `${name}=${value}`) }),
      }),
  );
  // Hijacked: the only way in which the end of our input reaches the command and its output still arrives. Without the
  // signal: the library forgets it at the upgrade, and a command that was begun must be known to who is to end it.
  const connection = await dockerCall(
    call,
    async () => await exec.start({ hijack: true, stdin: true }),
    (late) => void late.destroy(),
  );
  return { exec, connection };
}

/**
 * Exit code by the engine; undefined while the command runs.
 *
 * @throws FleetError `infra/sandbox_lost` when the box is gone, `infra/sandbox_exec` when the engine was restarted under a
 * living box and has forgotten the command
 */
async function exitCodeOf(container: Docker.Container, exec: Docker.Exec): Promise<number | undefined> {
  const call = { what: 'asking for an exit code', code: 'infra/sandbox_exec', deadlineMs: INSPECT_MS } as const;
  const state = await dockerCall(call, async () => {
    try {
      return await exec.inspect();
    } catch (error) {
      if (statusOf(error) !== NOT_FOUND) throw error;
      const box = await container.inspect().catch(() => undefined);
      throw box?.State.Running === true
        ? new FleetError('infra/sandbox_exec', 'the engine has forgotten the command', { cause: error })
        : new FleetError('infra/sandbox_lost', 'the sandbox is gone', { cause: error });
    }
  });
  return state.Running || state.ExitCode === null ? undefined : state.ExitCode;
}

/** Streams to a command that is ours while it runs. */
export async function openProcess(
  container: Docker.Container,
  options: ExecOptions & { readonly onOutput: OutputListener },
): Promise<SandboxProcess> {
  const { exec, connection } = await open(container, options);
  const ended = readMultiplexed(connection, options.onOutput);
  if (options.signal.aborted) connection.destroy();
  options.signal.throwIfAborted();
  return {
    write: async (data) => {
      if (connection.destroyed || connection.write(data)) return;
      await Promise.race([new Promise<void>((resolve) => connection.once('drain', resolve)), ended]);
    },
    endInput: () => void (connection.destroyed || connection.end()),
    pause: () => void connection.pause(),
    resume: () => void connection.resume(),
    ended,
    exitCode: async () => await exitCodeOf(container, exec),
    destroy: () => void connection.destroy(),
  };
}

interface Kept {
  readonly chunks: Buffer[];
  bytes: number;
}

/** Runs a command to its end, or to its deadline; then `kill` is to make an end of it. */
export async function runBlocking(
  container: Docker.Container,
  options: BlockingExecOptions,
  kill: () => Promise<void>,
): Promise<ExecResult> {
  const { exec, connection } = await open(container, options);
  const kept = { stdout: { chunks: [], bytes: 0 } as Kept, stderr: { chunks: [], bytes: 0 } as Kept };
  const ended = readMultiplexed(connection, (chunk, stream) => {
    const own = kept[stream];
    const room = options.maxBytes - own.bytes;
    if (room > 0) own.chunks.push(Buffer.from(chunk.subarray(0, room)));
    own.bytes += chunk.length;
  });
  const stopping = new AbortController();
  using _stop = onAborted(options.signal, () => stopping.abort());
  const timer = longTimer(options.deadlineMs, () => stopping.abort());
  const command = { container, exec, ended, over: new AbortController() };
  try {
    connection.end(options.stdin);
    const killed = codeOnceKilled(command, stopping.signal, kill);
    killed.catch(() => undefined);
    let exitCode = await Promise.race([finalCode(command), killed]);
    if (stopping.signal.aborted) {
      // What it started may outlive it by the moment that the kill still takes.
      exitCode = await killed;
      options.signal.throwIfAborted();
    }
    return {
      exitCode,
      stdout: Buffer.concat(kept.stdout.chunks),
      stderr: Buffer.concat(kept.stderr.chunks),
      stdoutBytes: kept.stdout.bytes,
      stderrBytes: kept.stderr.bytes,
    };
  } finally {
    command.over.abort();
    timer.clear();
    connection.destroy();
  }
}

interface RunningCommand {
  readonly container: Docker.Container;
  readonly exec: Docker.Exec;
  readonly ended: Promise<{ readonly lost: Error | undefined }>;
  /** Aborted when nobody waits any more. */
  readonly over: AbortController;
}

/**
 * The code of a command that is made to end once `stopping` is aborted. Kills again until the engine says that it has
 * ended: the engine opens the stream before there is a process that could be killed.
 */
async function codeOnceKilled(
  { container, exec, over }: RunningCommand,
  stopping: AbortSignal,
  kill: () => Promise<void>,
): Promise<number> {
  await new Promise<void>((resolve) => {
    const stop = onAborted(stopping, resolve);
    onAborted(over.signal, () => stop[Symbol.dispose]());
  });
  const giveUpAt = performance.now() + END_MS;
  for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
    await kill();
    const code = await exitCodeOf(container, exec);
    if (code !== undefined) return code;
    if (performance.now() > giveUpAt)
      throw new FleetError('infra/sandbox_exec', `the command lived on for ${END_MS} ms after it was killed`);
    await sleep(pauseMs);
  }
}

/** The code once the stream has ended; a stream that a background child holds is not waited for longer than a moment. */
async function finalCode({ container, exec, ended, over }: RunningCommand): Promise<number> {
  let end: { readonly lost: Error | undefined } | undefined;
  void ended.then((seen) => (end = seen));
  let exitedAt: number | undefined;
  let pauseMs = FIRST_PAUSE_MS;
  for (;;) {
    if (end === undefined) await Promise.race([ended, sleep(HELD_STREAM_MS / 2, undefined, { ref: false })]);
    if (over.signal.aborted) throw new FleetError('infra/sandbox_exec', 'nobody waits for the command any more');
    const code = await exitCodeOf(container, exec);
    if (end?.lost !== undefined)
      throw new FleetError('infra/sandbox_exec', `the command's stream broke (${end.lost.message})`, {
        cause: end.lost,
      });
    if (code !== undefined) {
      exitedAt ??= performance.now();
      if (end !== undefined || performance.now() - exitedAt > HELD_STREAM_MS) return code;
    } else if (end !== undefined) {
      // It has closed its output and runs on.
      await sleep(pauseMs, undefined, { ref: false });
      pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
    }
  }
}
