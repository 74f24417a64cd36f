import { randomBytes } from 'node:crypto';
import { PassThrough, type Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import tar from 'tar-stream';
import { type CallOptions, dockerCall, statusOf } from './docker-call.ts';
import { runBlocking } from './docker-exec.ts';
import { LABEL, ROLE } from './docker-labels.ts';
import { packed, withStopped } from './docker-stopped.ts';
import type { HermesInBox, SandboxShell } from './provider.ts';

/** Where the runner image has it (`worker/runner/pack.py`). */
const SOURCE = '/opt/hermes';
const FOLDER = '/.hermes-fleet';
const READY = '.ready';
/** Copying a few hundred megabytes, on a busy engine too. */
const COPY_MS = 240_000;
const CONTROL_MS = 30_000;
const POLL_MS = 500;
const NOT_FOUND = 404;

/**
 * The packed Hermes of the runner image, for boxes that Hermes is to run inside of: as a volume that is filled once per
 * engine and mounted read-only, or streamed into a box that is not ours. Both are named by the image's id.
 */
export class PackedHermes {
  readonly #docker: Docker;
  readonly #image: string;
  readonly #fleetId: string;
  #filling: Promise<void> | undefined;

  constructor(docker: Docker, image: string, fleetId: string) {
    this.#docker = docker;
    this.#image = image;
    this.#fleetId = fleetId;
  }

  /** The mount of a box that is to be made. @throws FleetError `infra/runner_start` */
  async mount(signal: AbortSignal): Promise<Docker.MountSettings> {
    const name = await this.#volume(signal);
    return {
      Type: 'volume',
      Source: name,
      Target: await this.#folder(signal),
      ReadOnly: true,
      VolumeOptions: { NoCopy: true, Labels: {}, DriverConfig: { Name: 'local', Options: {} } },
    };
  }

  /** How it is started in a box that has it. */
  async inBox(signal: AbortSignal): Promise<HermesInBox> {
    const folder = await this.#folder(signal);
    return {
      python: [`${folder}/lib/ld.so`, '--library-path', `${folder}/lib`, `${folder}/bin/python3`],
      env: { PYTHONHOME: folder, PYTHONPATH: `${folder}/site` },
      runner: `${folder}/runner`,
    };
  }

  /**
   * Streams it, or its runner's code alone, into a running container that is somebody else's. The two have names of their
   * own: a folder that is there is whole.
   */
  async putInto(
    container: Docker.Container,
    shell: SandboxShell,
    part: 'all' | 'runner',
    signal: AbortSignal,
  ): Promise<HermesInBox> {
    const given = await this.inBox(signal);
    const alone = `${FOLDER}/runner-${await this.#digest(signal)}`;
    const [from, made, target] =
      part === 'all' ? [SOURCE, 'hermes', await this.#folder(signal)] : [`${SOURCE}/runner`, 'runner', alone];
    const answer = part === 'all' ? given : { ...given, runner: alone };
    if (await this.#does(container, shell, `[ -d ${target} ]`, signal)) return answer;
    // Whole or not at all: another session may be about to use it.
    const making = `${FOLDER}/.${randomBytes(6).toString('hex')}`;
    await this.#must(container, shell, `mkdir -p ${making}`, signal);
    try {
      await this.#copy(container, from, making, signal);
      const move = `[ -d ${target} ] || mv ${making}/${made} ${target} || [ -d ${target} ]`;
      await this.#must(container, shell, move, signal);
      return answer;
    } finally {
      await this.#does(container, shell, `rm -rf ${making}`, AbortSignal.timeout(CONTROL_MS)).catch(() => false);
    }
  }

  async #folder(signal: AbortSignal): Promise<string> {
    return `${FOLDER}/hermes-${await this.#digest(signal)}`;
  }

  async #digest(signal: AbortSignal): Promise<string> {
    const { Id: id } = await dockerCall(
      { what: `looking at image ${this.#image}`, code: 'infra/runner_start', signal },
      async () => await this.#docker.getImage(this.#image).inspect(),
    );
    return id.replace(/^sha256:/, '').slice(0, 12);
  }

  async #volume(signal: AbortSignal): Promise<string> {
    const name = `hermes-fleet-${await this.#digest(signal)}`;
    const isThere = await dockerCall(
      { what: `looking at volume ${name}`, code: 'infra/runner_start', signal },
      async () =>
        await this.#docker
          .getVolume(name)
          .inspect()
          .then(
            () => true,
            (error: unknown) => {
              if (statusOf(error) === NOT_FOUND) return false;
              throw error;
            },
          ),
    );
    if (!isThere) this.#filling = undefined;
    // Without the signal: other boxes wait for the same volume.
    await (this.#filling ??= this.#fill(name).catch((error: unknown) => {
      this.#filling = undefined;
      throw error;
    }));
    return name;
  }

  /** The engine fills an empty volume from the image by itself. Whoever made the volume says when it is filled. */
  async #fill(name: string): Promise<void> {
    const maker = randomBytes(9).toString('hex');
    const call = { what: `filling volume ${name}`, code: 'infra/runner_start', deadlineMs: COPY_MS } as const;
    const labels = { [LABEL.role]: ROLE.hermes, [LABEL.maker]: maker };
    await dockerCall(call, async () => await this.#docker.createVolume({ Name: name, Labels: labels }));
    const volume = await dockerCall(call, async () => await this.#docker.getVolume(name).inspect());
    const isOurs = (volume.Labels as Record<string, string> | null)?.[LABEL.maker] === maker;
    const giveUpAt = performance.now() + COPY_MS;
    for (;;) {
      if (await this.#withVolume(name, isOurs)) return;
      if (performance.now() > giveUpAt)
        throw new FleetError(
          'infra/runner_start',
          `volume ${name} was never filled by whoever made it: remove it (docker volume rm ${name})`,
        );
      await sleep(POLL_MS);
    }
  }

  /** Looks for the mark of a filled volume; its maker sets it, once the engine has filled it. */
  async #withVolume(name: string, isOurs: boolean): Promise<boolean> {
    const call = { what: `filling volume ${name}`, code: 'infra/runner_start', deadlineMs: COPY_MS } as const;
    const mount: Docker.MountSettings = {
      Type: 'volume',
      Source: name,
      Target: SOURCE,
      ReadOnly: false,
      VolumeOptions: { NoCopy: !isOurs, Labels: {}, DriverConfig: { Name: 'local', Options: {} } },
    };
    return await this.#stopped(call, [mount], async (container) => {
      if (isOurs) {
        const mark = tar.pack();
        mark.entry({ name: READY }, '');
        mark.finalize();
        await dockerCall(call, async () => await container.putArchive(await packed(mark), { path: SOURCE }));
        return true;
      }
      return await dockerCall(
        call,
        async () =>
          await container.infoArchive({ path: `${SOURCE}/${READY}` }).then(
            () => true,
            (error: unknown) => {
              if (statusOf(error) === NOT_FOUND) return false;
              throw error;
            },
          ),
      );
    });
  }

  async #copy(target: Docker.Container, from: string, to: string, signal: AbortSignal): Promise<void> {
    const call = { what: 'putting Hermes into the sandbox', code: 'infra/runner_start', signal } as const;
    await this.#stopped(call, [], async (source) => await stream(source, target, { from, to, call, signal }));
  }

  async #stopped<T>(
    call: CallOptions,
    mounts: Docker.MountSettings[],
    use: (container: Docker.Container) => Promise<T>,
  ): Promise<T> {
    return await withStopped(this.#docker, { image: this.#image, fleetId: this.#fleetId, mounts }, call, use);
  }

  async #must(container: Docker.Container, shell: SandboxShell, script: string, signal: AbortSignal): Promise<void> {
    if (!(await this.#does(container, shell, script, signal)))
      throw new FleetError('infra/runner_start', `Hermes cannot be put into the sandbox ("${script}" failed there)`);
  }

  async #does(container: Docker.Container, shell: SandboxShell, script: string, signal: AbortSignal): Promise<boolean> {
    const path = shell.pathSuffix === undefined ? '' : `PATH=$PATH:${shell.pathSuffix}; `;
    const argv = [shell.path, '-c', `${path}${script}`];
    const limits = { maxBytes: 4096, deadlineMs: CONTROL_MS };
    return (await runBlocking(container, { argv, user: '0', signal, ...limits }, async () => undefined)).exitCode === 0;
  }
}

/** From one container's files into another's, without a copy of ours. */
async function stream(
  source: Docker.Container,
  target: Docker.Container,
  {
    from,
    to,
    call,
    signal,
  }: { readonly from: string; readonly to: string; readonly call: CallOptions; readonly signal: AbortSignal },
): Promise<void> {
  const through = new PassThrough();
  try {
    const archive = (await dockerCall(call, async () => await source.getArchive({ path: from }))) as Readable;
    archive.on('error', (error) => through.destroy(error));
    archive.pipe(through);
    await dockerCall(
      { ...call, deadlineMs: COPY_MS },
      async () => await target.putArchive(through, { path: to, abortSignal: signal }),
    );
  } finally {
    through.destroy();
  }
}
