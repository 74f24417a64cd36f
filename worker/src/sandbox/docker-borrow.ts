import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import { z } from 'zod';
import { DockerBox, stateOf } from './docker-box.ts';
import { dockerCall } from './docker-call.ts';
import { runBlocking } from './docker-exec.ts';
import { findShell } from './docker-shell.ts';
import type { Sandbox } from './provider.ts';
import type { PackedHermes } from './docker-hermes.ts';
import type { Toolbox } from './toolbox.ts';

const LOOK_MS = 15_000;

/**
 * How the owner of a container names it. NeMo Gym 0.7.0's Docker provider says `{"sandbox_id": <container name>,
 * "workdir": …}`, with `ports` where it has some; only the name is needed.
 */
const BorrowDescriptor = z.object({
  // It becomes part of a path of the engine's API.
  sandbox_id: z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$/, 'must be the name or the id of a container'),
});

/**
 * Somebody else's running container as a sandbox. Nothing of it is changed, but that static shell tools are put in where
 * it lacks them.
 *
 * @throws FleetError `infra/sandbox_lost` for one that is not there or does not run, `infra/sandbox_no_shell`
 */
export async function borrowContainer(
  docker: Docker,
  supplies: { readonly toolbox: Toolbox; readonly hermes: PackedHermes },
  access: { readonly descriptor: Readonly<Record<string, unknown>>; readonly workdir: string },
  signal: AbortSignal,
): Promise<Sandbox> {
  const { data, error } = BorrowDescriptor.safeParse(access.descriptor);
  if (data === undefined)
    throw new FleetError('infra/sandbox_lost', `the descriptor leads to no sandbox (${z.prettifyError(error)})`);
  const { workdir } = access;
  const found = await dockerCall(
    { what: `finding container ${data.sandbox_id}`, code: 'infra/sandbox_lost', signal },
    async () => await docker.getContainer(data.sandbox_id).inspect(),
  );
  const state = stateOf(found.State, found.State.StartedAt);
  if (state !== 'running') throw new FleetError('infra/sandbox_lost', `container ${data.sandbox_id} is ${state}`);
  // By its id from here on: a name may become another container's.
  const container = docker.getContainer(found.Id);
  const shell = await findShell(container, supplies.toolbox, { image: found.Config.Image, user: undefined, signal });
  const path = shell.pathSuffix === undefined ? '' : `PATH=$PATH:${shell.pathSuffix}; `;
  const limits = { signal, maxBytes: 4096, deadlineMs: LOOK_MS };
  const seen = await runBlocking(
    container,
    { argv: [shell.path, '-c', `${path}cd -- "$1"`, 'sh', workdir], ...limits },
    async () => undefined,
  );
  if (seen.exitCode !== 0)
    throw new FleetError('infra/sandbox_lost', `container ${data.sandbox_id} has no folder ${workdir} (workdir)`);
  return new DockerBox(
    container,
    { id: found.Id, name: data.sandbox_id, workdir, shell, startedAt: found.State.StartedAt, isBorrowed: true },
    async (part, options) => await supplies.hermes.putInto(container, shell, part, options.signal),
  );
}
