import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import { reasonOfAbort } from '../cancellation.ts';
import { removeContainer } from './docker-box.ts';
import { dockerCall, statusOf } from './docker-call.ts';
import { LABEL, ROLE } from './docker-labels.ts';
import type { SandboxSpec } from './provider.ts';
import { TOOLBOX, type Toolbox } from './toolbox.ts';

const MIB = 1024 * 1024;
const NANO_CPUS = 1e9;
const NOT_FOUND = 404;
const CONFLICT = 409;
const SHORTEST_LIFE_S = 60;
const CANNOT_RUN = 126;
const COMMAND_NOT_FOUND = 127;
/** Enough is left for package managers and users of their own; none of these has a use in a task. */
const DROPPED_CAPABILITIES = ['NET_RAW', 'MKNOD', 'AUDIT_WRITE'];

export interface Starting {
  readonly docker: Docker;
  readonly fleetId: string;
  readonly toolbox: Toolbox;
  readonly mounts: readonly Docker.MountSettings[];
  readonly signal: AbortSignal;
}

/**
 * Makes and starts a container that lives until the box expires. Whatever goes wrong, it leaves none.
 *
 * @param needsSleep the image has no `sh`, or not even a `sleep`: PID 1 comes from the toolbox
 */
export async function startContainer(
  spec: SandboxSpec,
  needsSleep: boolean,
  starting: Starting,
): Promise<Docker.Container> {
  const { toolbox, signal } = starting;
  const container = await createContainer(spec, needsSleep, starting);
  try {
    if (needsSleep) await toolbox.putInto(container, signal);
    await dockerCall(
      { what: `starting a sandbox of image ${spec.image}`, code: 'infra/sandbox_create', signal },
      async () => await container.start(),
    );
    return container;
  } catch (error) {
    await discard(container);
    throw error;
  }
}

/** Whether a container does not run because there is no `sh` in it, or no `sleep`. */
export async function lacksSleep(container: Docker.Container): Promise<boolean> {
  const { Running: isRunning, ExitCode: code } = await dockerCall(
    { what: 'asking why a sandbox has ended', code: 'infra/sandbox_create' },
    async () => (await container.inspect()).State,
  );
  return !isRunning && (code === CANNOT_RUN || code === COMMAND_NOT_FOUND);
}

/** Removes a container on the way out of a failure, which is what must be heard of; the reaper finds what stays. */
export async function discard(container: Docker.Container): Promise<void> {
  await removeContainer(container).catch(() => undefined);
}

async function createContainer(spec: SandboxSpec, needsSleep: boolean, starting: Starting): Promise<Docker.Container> {
  const { docker, fleetId, signal } = starting;
  const options = containerOptions(spec, needsSleep, starting);
  const isOurs = (labels: Readonly<Record<string, string>>): boolean =>
    labels[LABEL.fleet] === fleetId && labels[LABEL.lease] === spec.name;
  signal.throwIfAborted();
  // Without the signal: an abort half-way would leave a container behind that nobody has the id of.
  const container = await dockerCall(
    { what: `creating a sandbox of image ${spec.image}`, code: 'infra/sandbox_create' },
    async () => {
      try {
        return await docker.createContainer(options);
      } catch (error) {
        if (statusOf(error) !== CONFLICT || !(await removeNamesake(docker, options.name, isOurs))) throw error;
        return await docker.createContainer(options);
      }
    },
    discard,
  );
  if (!signal.aborted) return container;
  await discard(container);
  throw reasonOfAbort(signal);
}

/** A name is taken by a run of the same lease that died half-way, or by somebody else, whose it stays. */
async function removeNamesake(
  docker: Docker,
  name: string,
  isOurs: (labels: Readonly<Record<string, string>>) => boolean,
): Promise<boolean> {
  const container = docker.getContainer(name);
  try {
    if (!isOurs((await container.inspect()).Config.Labels)) return false;
  } catch (error) {
    // Gone meanwhile, and the name with it.
    if (statusOf(error) === NOT_FOUND) return true;
    throw error;
  }
  await removeContainer(container);
  return true;
}

/**
 * What a box lives by, until it expires. A shell, since it must be PID 1 and no program: that one reaps what the agent's
 * commands leave behind, or zombies fill the table of processes; and `kill -9 -1`, which ends every program, spares it.
 * Once its `sleep` was killed it never ends by itself, whatever `sleep` is by then; the reaper knows the hard expiry.
 */
function firstProcess(sleep: string): string {
  return `n=0; while :; do ${sleep} & wait $!; c=$?; case $n.$c in 0.12[67]) exit $c;; 0.?|0.??|0.1[01]?|0.12?) exit 0;; esac; n=1; done`;
}

function containerOptions(
  spec: SandboxSpec,
  needsSleep: boolean,
  { fleetId, mounts }: Starting,
): Docker.ContainerCreateOptions & { readonly name: string } {
  const { limits, user } = spec;
  if (!/^[A-Za-z0-9._-]+$/.test(spec.name))
    throw new FleetError('infra/sandbox_create', `${JSON.stringify(spec.name)} is no name of a sandbox`);
  const life = String(Math.max(SHORTEST_LIFE_S, Math.ceil(spec.expiresAtS - Date.now() / 1000)));
  const memory = limits.memoryMib * MIB;
  return {
    name: `hf-${fleetId}-${spec.name}`,
    Image: spec.image,
    Labels: {
      [LABEL.fleet]: fleetId,
      [LABEL.session]: spec.sessionKey,
      [LABEL.lease]: spec.name,
      [LABEL.role]: ROLE.sandbox,
      [LABEL.expires]: String(spec.expiresAtS),
    },
    Entrypoint: [],
    Cmd: needsSleep
      ? [`${TOOLBOX}/busybox`, 'sh', '-c', firstProcess(`${TOOLBOX}/busybox sleep ${life}`)]
      : ['sh', '-c', firstProcess(`sleep ${life}`)],
    WorkingDir: spec.workdir,
    Hostname: 'sandbox',
    Env: Object.entries(spec.env).map(([key, value]) => `${key}=${value}`),
    ...(user === undefined ? {} : { User: user }),
    HostConfig: {
      NetworkMode: spec.network === 'none' ? 'none' : 'bridge',
      NanoCpus: Math.round(limits.cpus * NANO_CPUS),
      Memory: memory,
      // The same: no swap on top.
      MemorySwap: memory,
      PidsLimit: limits.pids,
      CapDrop: DROPPED_CAPABILITIES,
      LogConfig: { Type: 'none', Config: {} },
      Mounts: [...mounts],
    },
  };
}
