import { FleetError, reasonOf } from '@hermes-fleet/shared';
import { quote, stateFolder } from '../broker/shell-wrapper.ts';
import { RunnerChannel } from '../channel/channel.ts';
import type { HermesInBox, RunnerProcess, Sandbox, SandboxProvider } from '../sandbox/provider.ts';
import { HERMES_VERSION } from './pinned-version.ts';

/** Hermes in the task sandbox, as a seed found it or put it there. Plain JSON: later commands read it from the record. */
export interface InsideHermes extends HermesInBox {
  /** `image`: it was there, at the pinned version. `packed`: ours. */
  readonly origin: 'image' | 'packed';
}

interface Place {
  readonly sandbox: Sandbox;
  readonly sessionKey: string;
  readonly user: string | undefined;
}

const CHECK_MS = 60_000;
const CONTROL_MS = 15_000;
const READY_MS = 120_000;
const KEPT_BYTES = 8192;
/** Of the image's own interpreters those that a person would start. */
const CANDIDATES = ['python3', 'python'];
const CHECK = `import importlib.metadata as m, sys
v = m.version("hermes-agent")
if v != sys.argv[1]: sys.exit(f"hermes-agent is {v}")
import mcp, run_agent`;
/** The version alone: cheap where there is no Hermes at all. */
const HAS = `import importlib.metadata as m, sys
sys.exit(m.version("hermes-agent") != sys.argv[1])`;

/**
 * Makes sure that the pinned Hermes imports in the sandbox: the image's own where it does, else the packed one.
 *
 * @throws FleetError `infra/runner_start`, with what the import said
 */
export async function prepareInside(place: Place, signal: AbortSignal): Promise<InsideHermes> {
  const { sandbox } = place;
  if (sandbox.openProcess === undefined || sandbox.giveHermes === undefined)
    throw new FleetError('infra/runner_start', 'hermes.placement "inside" is more than this provider can do');
  for (const candidate of CANDIDATES) {
    if (!(await isThere(place, candidate, signal))) continue;
    if ((await importError(place, { python: [candidate], env: {} }, signal)) !== undefined) continue;
    const { runner } = await sandbox.giveHermes('runner', { signal });
    return { python: [candidate], env: {}, runner, origin: 'image' };
  }
  const given = await sandbox.giveHermes('all', { signal });
  const problem = await importError(place, given, signal);
  if (problem !== undefined)
    throw new FleetError('infra/runner_start', `Hermes ${HERMES_VERSION} does not import in the sandbox (${problem})`);
  return { ...given, origin: 'packed' };
}

async function isThere(place: Place, python: string, signal: AbortSignal): Promise<boolean> {
  const script = `command -v ${python} >/dev/null 2>&1 && ${python} -c ${quote(HAS)} ${HERMES_VERSION} >/dev/null 2>&1`;
  return (await run(place, script, {}, signal)).exitCode === 0;
}

async function importError(
  place: Place,
  { python, env }: Pick<HermesInBox, 'python' | 'env'>,
  signal: AbortSignal,
): Promise<string | undefined> {
  const folder = folderOf(place);
  const command = [...python, '-c', CHECK, HERMES_VERSION].map(quote).join(' ');
  const script = `mkdir -p -m 700 ${folder}/check && HOME=${folder}/check HERMES_HOME=${folder}/check ${command}; c=$?; rm -rf ${folder}/check; rmdir ${folder} 2>/dev/null; exit $c`;
  const result = await run(place, script, { ...env, HERMES_DISABLE_LAZY_INSTALLS: '1' }, signal);
  if (result.exitCode === 0) return undefined;
  return `${result.stderr.toString().trim().split('\n').slice(-3).join('; ')} (exit ${result.exitCode})`;
}

export interface InsideRun extends Place {
  readonly hermes: InsideHermes;
  /** `<number of the command>.<epoch>`: names the PID file and the stop marker of this one run. */
  readonly run: string;
  readonly signal: AbortSignal;
}

/** Starts a runner host in the sandbox, for one activation. @throws FleetError `infra/runner_start` */
export async function startInside(options: InsideRun): Promise<RunnerChannel> {
  const { signal } = options;
  const launcher: Pick<SandboxProvider, 'launchRunner'> = {
    launchRunner: async (launch) => await launchInside(options, launch),
  };
  return await RunnerChannel.start(launcher, { signal, readyMs: READY_MS });
}

async function launchInside(
  options: InsideRun,
  { onOutput, onLog }: Parameters<SandboxProvider['launchRunner']>[0],
): Promise<RunnerProcess> {
  const { sandbox, user, hermes, run: name, signal } = options;
  if (sandbox.openProcess === undefined)
    throw new FleetError('infra/runner_start', 'the provider has no streamed exec');
  const folder = folderOf(options);
  let queuedBytes = 0;
  const process = await sandbox.openProcess({
    argv: shellOf(sandbox, launchScript(folder, name, hermes)),
    user,
    workdir: sandbox.workdir,
    env: {
      ...hermes.env,
      PYTHONHASHSEED: '0',
      PYTHONDONTWRITEBYTECODE: '1',
      LANG: 'C.UTF-8',
      HF_ROOT: `${folder}/run.${name}`,
      HF_UIDS: 'off',
    },
    signal,
    onOutput: (chunk, stream) => (stream === 'stdout' ? onOutput(chunk) : onLog(chunk.toString())),
  });
  const ended = process.ended.then(async ({ lost }) => {
    const code = lost === undefined ? await process.exitCode().catch(() => undefined) : undefined;
    const how = lost === undefined ? `ended with ${code ?? 'no exit code'}` : `was lost (${lost.message})`;
    return { reason: `the runner host inside the sandbox ${how}`, oom: false };
  });
  return {
    write: (data) => {
      queuedBytes += data.length;
      process
        .write(data)
        .catch(() => undefined)
        .finally(() => (queuedBytes -= data.length));
    },
    get queuedBytes() {
      return queuedBytes;
    },
    ended,
    remove: async () => {
      process.endInput();
      try {
        await stopInside(options, name);
      } finally {
        process.destroy();
      }
    },
  };
}

/**
 * Ends runs of Hermes in the sandbox: those of the pattern `runs` that have begun, and one of that name that has not.
 * A PID counts only with the start time that was recorded beside it: it may be somebody else's by now.
 */
export async function stopInside(place: Place, runs: string): Promise<void> {
  try {
    await run(place, stopScript(folderOf(place), runs), {}, AbortSignal.timeout(CONTROL_MS));
  } catch (error) {
    // What is gone runs nothing.
    if ((await place.sandbox.state()) !== 'running') return;
    throw new FleetError('infra/sandbox_exec', `Hermes in the sandbox could not be stopped (${reasonOf(error)})`, {
      cause: error,
    });
  }
}

const folderOf = ({ sandbox, sessionKey }: Place): string => stateFolder(sessionKey, sandbox.temporary);

function shellOf({ shell: { path, pathSuffix } }: Sandbox, script: string): string[] {
  return [path, '-c', pathSuffix === undefined ? script : `PATH=$PATH:${pathSuffix}; export PATH\n${script}`];
}

async function run(
  place: Place,
  script: string,
  env: Readonly<Record<string, string>>,
  signal: AbortSignal,
): ReturnType<Sandbox['exec']> {
  const { sandbox, user } = place;
  const limits = { maxBytes: KEPT_BYTES, deadlineMs: CHECK_MS };
  return await sandbox.exec({ argv: shellOf(sandbox, script), user, env, signal, ...limits });
}

/** Field 22 of /proc/<pid>/stat, behind a name that may hold anything. Sets `s`: the state, and `t`: the start time. */
const START_TIME =
  'start_of() { s= t=; read -r line <"/proc/$1/stat" || return 1; set -- ${line##*) }; s=$1 t=${20}; } 2>/dev/null';

export function launchScript(folder: string, name: string, hermes: HermesInBox): string {
  const epoch = name.slice(name.indexOf('.') + 1);
  const command = [...hermes.python, '-u', `${hermes.runner}/host.py`].map(quote).join(' ');
  return [
    `mkdir -p -m 700 ${folder}; cd ${folder} || exit 1`,
    `e=0; [ -f epoch ] && read -r e <epoch; [ "$e" -gt ${epoch} ] 2>/dev/null && exit 125`,
    `[ -e stop.${name} ] && exit 143`,
    START_TIME,
    `start_of $$ && printf '%s %s\\n' "$$" "$t" >pid.${name}.new && mv pid.${name}.new pid.${name} || exit 1`,
    // Again, now that the PID can be read: whoever set the marker between may have found none.
    `[ -e stop.${name} ] && exit 143`,
    `exec ${command}`,
  ].join('\n');
}

/** @param runs a name, or a shell pattern of names */
export function stopScript(folder: string, runs: string): string {
  return [
    `mkdir -p -m 700 ${folder} && cd ${folder} || exit 1`,
    START_TIME,
    ...(runs.includes('*') ? [] : [`: >stop.${runs}`]),
    `for f in pid.${runs}; do`,
    '  [ -f "$f" ] || continue',
    '  n=${f#pid.}; : >"stop.$n"',
    '  read -r p at <"$f"',
    '  alive() { start_of "$p" && [ "$t" = "$at" ] && [ "$s" != Z ]; }',
    '  alive && kill -s TERM "$p" 2>/dev/null',
    '  i=0; while alive && [ $i -lt 10 ]; do sleep 0.1 2>/dev/null || sleep 1; i=$((i+1)); done',
    '  alive && kill -s KILL "$p" 2>/dev/null',
    '  rm -rf "$f" "run.$n"',
    'done',
    'exit 0',
  ].join('\n');
}
