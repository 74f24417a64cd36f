import { randomBytes } from 'node:crypto';
import { dockerProvider } from '@hermes-fleet/worker/sandbox/docker';
import type { SandboxProvider } from '@hermes-fleet/worker/sandbox/provider';
import Docker from 'dockerode';
import { Bench } from '../conformance/bench.ts';
import { DEBIAN_IMAGE, makeImages, RUNNER_IMAGE } from './images.ts';

/** A fleet of the test's own on the engine; disposing removes every container of it, and fails when there was one. */
export interface DockerFleet extends AsyncDisposable {
  readonly fleetId: string;
  readonly docker: Docker;
  readonly provider: SandboxProvider;
  readonly bench: Bench;
  /** Ids of all containers of the fleet, whatever their role and state. */
  readonly containers: () => Promise<string[]>;
}

export async function dockerFleet(
  more: { readonly engine?: Docker; readonly pull?: 'missing' | 'never' } = {},
): Promise<DockerFleet> {
  const docker = new Docker();
  await makeImages(docker);
  const fleetId = `t${randomBytes(4).toString('hex')}`;
  const make = (): SandboxProvider =>
    dockerProvider({
      docker: more.engine ?? docker,
      fleetId,
      runnerImage: RUNNER_IMAGE,
      runnerMemoryMib: 2048,
      pull: more.pull ?? 'never',
    });
  const filters = JSON.stringify({ label: [`hermes-fleet.fleet=${fleetId}`] });
  const containers = async (): Promise<string[]> =>
    (await docker.listContainers({ all: true, filters })).map(({ Id: id }) => id);
  const close = async (): Promise<void> => {
    const left = await containers();
    await Promise.all(left.map(async (id) => await docker.getContainer(id).remove({ force: true, v: true })));
    if (left.length > 0) throw new Error(`${left.length} containers of the test were left`);
  };
  const [provider, peer] = [make(), make()];
  const bench = new Bench({
    provider,
    peer,
    foreign: peer,
    spec: { image: DEBIAN_IMAGE },
    impossible: {},
    otherUser: '1234',
    hasOwnProcesses: true,
    leftovers: containers,
    close,
  });
  return { fleetId, docker, provider, bench, containers, [Symbol.asyncDispose]: close };
}
