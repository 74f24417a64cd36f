import { randomBytes } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { dockerProvider } from '@hermes-fleet/worker/sandbox/docker';
import { localProvider } from '@hermes-fleet/worker/sandbox/local';
import type { Sandbox, SandboxProvider } from '@hermes-fleet/worker/sandbox/provider';
import Docker from 'dockerode';
import { BUSYBOX_IMAGE, DEBIAN_IMAGE, makeImages, RUNNER_IMAGE } from './images.ts';

const docker = new Docker();
const fleetId = `t${randomBytes(4).toString('hex')}`;

/** Where a broker's commands run. */
export interface Place {
  readonly provider: SandboxProvider;
  readonly image: string;
  readonly limits: { readonly cpus: number; readonly memoryMib: number; readonly pids: number };
  /** Command lines of what runs in a box, seen from outside of it. */
  processes(box: Sandbox): Promise<string[]>;
  close(): Promise<void>;
}

async function dockerPlace(image: string): Promise<Place> {
  await makeImages(docker);
  return {
    provider: dockerProvider({ docker, fleetId, runnerImage: RUNNER_IMAGE, runnerMemoryMib: 512, pull: 'never' }),
    image,
    limits: { cpus: 2, memoryMib: 1024, pids: 256 },
    processes: async (box) => {
      const top = (await docker.getContainer(String(box.descriptor['id'])).top({ ps_args: '-eo pid,args' })) as {
        Processes: string[][];
      };
      const lines = top.Processes.map((line) => line.slice(1).join(' '));
      // Without the shell and the sleep that every box lives by.
      const first = lines.find((line) => line.startsWith('sh -c n=0; while'));
      const sleep = /sleep \d+/.exec(first ?? '')?.[0];
      return lines.filter((line) => line !== first && line !== sleep);
    },
    close: async () => undefined,
  };
}

async function localPlace(): Promise<Place> {
  const root = await mkdtemp(path.join(tmpdir(), 'fleet-broker-'));
  return {
    provider: localProvider({ fleetId, root, python: '', hostScript: '', warn: () => undefined }),
    image: 'none',
    limits: { cpus: 2, memoryMib: 4096, pids: 512 },
    processes: async (box) => {
      const found: string[] = [];
      for (const pid of await readdir('/proc')) {
        const environment = /^\d+$/.test(pid) ? await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '') : '';
        if (environment.includes(`HF_BOX=${box.name}`))
          found.push(await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => ''));
      }
      return found;
    },
    close: async () => await rm(root, { recursive: true, force: true }),
  };
}

export const PLACES: Readonly<Record<string, () => Promise<Place>>> = {
  'Debian in docker': async () => await dockerPlace(DEBIAN_IMAGE),
  'busybox in docker': async () => await dockerPlace(BUSYBOX_IMAGE),
  'a local box': localPlace,
};

/** Removes what a test that failed has left. */
export async function removeLeftovers(): Promise<void> {
  const filters = JSON.stringify({ label: [`hermes-fleet.fleet=${fleetId}`] });
  for (const { Id: id } of await docker.listContainers({ all: true, filters }))
    await docker.getContainer(id).remove({ force: true });
}
