import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import path from 'node:path';
import { FleetError, reasonOf } from '@hermes-fleet/shared';
import { z } from 'zod';
import { readFiles, writeFiles } from './local-files.ts';
import { killMarked } from './local-kill.ts';
import { type LocalCommand, openLocal, runLocal } from './local-process.ts';
import { launchLocalRunner } from './local-runner.ts';
import type { ListedSandbox, Sandbox, SandboxProvider, SandboxSpec } from './provider.ts';

export interface LocalOptions {
  readonly fleetId: string;
  /** Folder of the boxes, shared by the workers of this host. */
  readonly root: string;
  /** Python with the pinned Hermes, and the runner host's script. */
  readonly python: string;
  readonly hostScript: string;
  readonly warn: (message: string) => void;
}

/** What a box says of itself, as labels do elsewhere. */
const BoxFile = z.object({
  fleet: z.string(),
  session: z.string(),
  name: z.string(),
  expires: z.number(),
  workdir: z.string().default('/workspace'),
  env: z.record(z.string(), z.string()),
});
type BoxFile = z.infer<typeof BoxFile>;

const BOX_FILE = 'box.json';
const REMOVING_FILE = 'removing';
const WORKSPACE = 'workspace';
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
const DEFAULT_LIMITS = { cpus: 2, memoryMib: 4096, pids: 512 } as const;
const LIMIT_FIELDS = { cpus: 'cpus', memoryMib: 'memory_mib', pids: 'pids' } as const;
// eslint-disable-next-line node/no-process-env -- where programs lie is the host's own, and no setting of the fleet
const HOST_PATH = process.env['PATH'] ?? '/usr/local/bin:/usr/bin:/bin';

/** Sandboxes that are folders, with child processes in them: for trusted work, and machines without an engine. No isolation. */
export function localProvider(options: LocalOptions): SandboxProvider {
  const { fleetId, root, python, hostScript, warn } = options;
  const open = (box: BoxFile): Sandbox => openBox(path.join(root, box.name), box, { python, hostScript });
  return {
    kind: 'local',
    isolates: false,
    engineId: async () => `local-${hostname()}`.replaceAll(/[^A-Za-z0-9._-]/g, '_'),
    ping: async () => true,
    create: async (spec, { signal }) => {
      signal.throwIfAborted();
      checkLimits(spec);
      if (spec.network === 'none') warn('the local provider cannot keep a sandbox off the network');
      const box = {
        fleet: fleetId,
        session: spec.sessionKey,
        name: spec.name,
        expires: spec.expiresAtS,
        workdir: spec.workdir,
        env: spec.env,
      };
      await makeBox(root, box);
      return open(box);
    },
    connect: async (descriptor, { signal }) => {
      signal.throwIfAborted();
      const box = await readBox(root, String(descriptor['name']));
      if (box === undefined) throw new FleetError('infra/sandbox_lost', 'the sandbox is gone');
      return open(box);
    },
    list: async () => {
      const names = await readdir(root).catch(() => []);
      const boxes = await Promise.all(names.map(async (name) => await readBox(root, name)));
      return boxes.flatMap((box): ListedSandbox[] =>
        box === undefined || box.fleet !== fleetId
          ? []
          : [
              {
                name: box.name,
                sessionKey: box.session,
                expiresAtS: box.expires,
                remove: async () => await open(box).remove(),
              },
            ],
      );
    },
    launchRunner: async (launch) => await launchLocalRunner({ python, hostScript, path: HOST_PATH }, launch),
    close: async () => undefined,
  };
}

function checkLimits({ limits }: SandboxSpec): void {
  for (const name of ['cpus', 'memoryMib', 'pids'] as const)
    if (limits[name] !== DEFAULT_LIMITS[name])
      throw new FleetError(
        'infra/sandbox_limit',
        `the local provider cannot enforce sandbox.limits.${LIMIT_FIELDS[name]}`,
      );
}

async function makeBox(root: string, box: BoxFile): Promise<void> {
  if (!NAME.test(box.name))
    throw new FleetError('infra/sandbox_create', `${JSON.stringify(box.name)} is no name of a sandbox`);
  const folder = path.join(root, box.name);
  try {
    await mkdir(folder, { recursive: true });
    // First of all: a folder without it is found by nobody. Only its owner may read it, it has the session's environment.
    await writeFile(path.join(folder, BOX_FILE), JSON.stringify(box), { mode: 0o600 });
    await mkdir(path.join(folder, WORKSPACE), { recursive: true });
  } catch (error) {
    await rm(folder, { recursive: true, force: true }).catch(() => undefined);
    const code = /ENOSPC|EDQUOT/.test(reasonOf(error)) ? 'infra/sandbox_disk' : 'infra/sandbox_create';
    throw new FleetError(code, `the sandbox's folder cannot be made (${reasonOf(error)})`, { cause: error });
  }
}

async function readBox(root: string, name: string): Promise<BoxFile | undefined> {
  if (!NAME.test(name)) return undefined;
  try {
    const box = BoxFile.parse(JSON.parse(await readFile(path.join(root, name, BOX_FILE), 'utf8')));
    return box.name === name ? box : undefined;
  } catch {
    return undefined;
  }
}

function openBox(
  folder: string,
  box: BoxFile,
  { python, hostScript }: Pick<LocalOptions, 'python' | 'hostScript'>,
): Sandbox {
  const workdir = path.join(folder, WORKSPACE);
  const mark = `HF_BOX=${box.name}`;
  const env = { PATH: HOST_PATH, LANG: 'C.UTF-8', HOME: workdir, TMPDIR: folder, ...box.env };
  const folders = { root: folder, workdir, promised: box.workdir };
  const isThere = (): boolean =>
    existsSync(path.join(folder, BOX_FILE)) && !existsSync(path.join(folder, REMOVING_FILE));
  const check = (): void => {
    if (!isThere()) throw new FleetError('infra/sandbox_lost', 'the sandbox is gone');
  };
  const command = (cwd: string | undefined): LocalCommand => {
    check();
    return { cwd: cwd ?? workdir, env, marks: [mark] };
  };
  const isBash = existsSync('/bin/bash');
  return {
    name: box.name,
    id: box.name,
    workdir,
    shell: { path: isBash ? '/bin/bash' : '/bin/sh', isBash, pathSuffix: undefined },
    // The host's own would keep them when the box has gone.
    temporary: folder,
    descriptor: { name: box.name },
    exec: async (exec) => {
      const result = await runLocal(exec, command(exec.workdir));
      check();
      return result;
    },
    openProcess: async (exec) => await openLocal(exec, command(exec.workdir)),
    putFiles: async (files, { signal }) => {
      signal.throwIfAborted();
      check();
      await writeFiles(folders, files);
    },
    getFiles: async (paths, { signal, maxBytes }) => {
      signal.throwIfAborted();
      check();
      return await readFiles(folders, paths, maxBytes);
    },
    // Nothing to be given: a box sees what the host has.
    giveHermes: async () => ({ python: [python], env: {}, runner: path.dirname(hostScript) }),
    state: async () => (isThere() ? 'running' : 'gone'),
    remove: async () => {
      if (!existsSync(folder)) return;
      // First, so that nothing new is started while the old is ended; what it is called goes last, for the reaper.
      await writeFile(path.join(folder, REMOVING_FILE), '');
      await killMarked(mark);
      const names = (await readdir(folder)).filter((name) => name !== BOX_FILE && name !== REMOVING_FILE);
      for (const name of [...names, '.']) await removeTree(path.join(folder, name));
    },
  };
}

async function removeTree(target: string): Promise<void> {
  await rm(path.resolve(target), { recursive: true, force: true, maxRetries: 5, retryDelay: 50 });
}
