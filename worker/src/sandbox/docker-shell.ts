import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import { runBlocking } from './docker-exec.ts';
import type { SandboxShell } from './provider.ts';
import { TOOLBOX, type Toolbox } from './toolbox.ts';

const PROBE_MS = 20_000;
const KEPT_BYTES = 4096;
const CANNOT_RUN = 126;
const NOT_FOUND = 127;
const NO_BASH = 2;
/** What is written to exit code 3 by the probe: a tool that file commands are made of is missing. */
const PROBE =
  'for tool in sleep cat mkdir mv rm wc head tail sed grep find stat dirname; do command -v "$tool" >/dev/null 2>&1 || exit 3; done; command -v bash || exit 2';
const NO_PROGRAM = /executable file not found|no such file or directory|exec format/i;

/** Whether an engine's error says that a program is not there. */
export const isNoProgram = (error: unknown): boolean => error instanceof FleetError && NO_PROGRAM.test(error.message);

/** A grep that cannot look behind a NUL cannot find a process by its environment. */
const GREP_PROBE = `printf 'a\\000b\\n' | grep -q b || exit 3`;

export interface ProbeOptions {
  readonly image: string;
  readonly user: string | undefined;
  readonly signal: AbortSignal;
}

interface Answer {
  readonly code: number;
  readonly text: string;
}

async function run(
  container: Docker.Container,
  argv: readonly string[],
  user: string | undefined,
  signal: AbortSignal,
): Promise<Answer> {
  try {
    const limits = { maxBytes: KEPT_BYTES, deadlineMs: PROBE_MS };
    // Nothing to kill: the box goes when its probe does not answer.
    const result = await runBlocking(container, { argv, user, signal, ...limits }, async () => {
      throw new FleetError('infra/sandbox_no_shell', `the shell of the image did not answer within ${PROBE_MS} ms`);
    });
    return { code: result.exitCode, text: (result.stdout.toString() + result.stderr.toString()).trim() };
  } catch (error) {
    // Engines differ in whether a program that is not there is an exit code or an error of the call.
    if (error instanceof FleetError && error.code === 'infra/sandbox_exec' && NO_PROGRAM.test(error.message))
      return { code: NOT_FOUND, text: error.message };
    throw error;
  }
}

/**
 * Tries the shell of an image's first box; a box without bash, or without POSIX tools, gets ours.
 *
 * @throws FleetError `infra/sandbox_no_shell`
 */
export async function findShell(
  container: Docker.Container,
  toolbox: Toolbox,
  { image, user, signal }: ProbeOptions,
): Promise<SandboxShell> {
  const own = await run(container, ['sh', '-c', `${GREP_PROBE}; ${PROBE}`], user, signal);
  if (own.code === 0) return { path: 'bash', isBash: true, pathSuffix: undefined };
  await toolbox.putInto(container, signal);
  const shell: SandboxShell = { path: `${TOOLBOX}/bash`, isBash: true, pathSuffix: TOOLBOX };
  const given = await run(container, [shell.path, '-c', `PATH=$PATH:${TOOLBOX}; ${PROBE}`], user, signal);
  if (given.code === 0 || given.code === NO_BASH) return shell;
  const kind = given.code === CANNOT_RUN || given.code === NOT_FOUND ? 'no shell can be run' : 'no shell works';
  throw new FleetError('infra/sandbox_no_shell', `${kind} in image ${image} (exit ${given.code}: ${given.text})`);
}

/** Gives the workdir to its user, who could not write there: the engine makes the folder as root. */
export async function giveWorkdir(
  container: Docker.Container,
  shell: SandboxShell,
  options: { readonly workdir: string; readonly user: string; readonly signal: AbortSignal },
): Promise<void> {
  const { workdir, user, signal } = options;
  const path = shell.pathSuffix === undefined ? '' : `PATH=$PATH:${shell.pathSuffix}; `;
  // Only what is empty: a folder that came with the image keeps its owners.
  const script = `${path}[ -n "$(ls -A "$1")" ] || chown "$2" "$1"`;
  const { code, text } = await run(container, [shell.path, '-c', script, 'sh', workdir, user], '0', signal);
  if (code !== 0)
    throw new FleetError('infra/sandbox_create', `workdir ${workdir} cannot be given to ${user} (${text})`);
}
