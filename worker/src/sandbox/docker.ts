/**
 * Sandboxes as Docker containers. Each carries our labels from its creation (fleet, session, lease, hard expiry), so that
 * whatever dies, the reaper of the engine finds it; nothing of a crash survives but the container itself, and it is
 * removed when its lease has lapsed.
 */
import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import { borrowContainer } from './docker-borrow.ts';
import { DockerBox, readDescriptor, removeContainer, stateIn, stateOf } from './docker-box.ts';
import { dockerCall } from './docker-call.ts';
import { discard, lacksSleep, startContainer, type Starting } from './docker-create.ts';
import { PackedHermes } from './docker-hermes.ts';
import { Images } from './docker-image.ts';
import { LABEL, ROLE } from './docker-labels.ts';
import { launchDockerRunner } from './docker-runner.ts';
import { findShell, giveWorkdir, isNoProgram } from './docker-shell.ts';
import { lostSandbox, type Sandbox, type SandboxProvider, type SandboxShell, type SandboxSpec } from './provider.ts';
import { Toolbox } from './toolbox.ts';

export interface DockerProviderOptions {
  readonly docker: Docker;
  readonly fleetId: string;
  readonly runnerImage: string;
  readonly runnerMemoryMib: number;
  readonly pull: 'missing' | 'never';
}

const PING_MS = 5_000;
/** What an image lacks; asked of its first box, known for the next ones. */
interface ImageNeeds {
  /** No `sh`, or not even `sleep`: PID 1 comes from the toolbox. */
  readonly sleep: boolean;
  readonly shell: SandboxShell;
}

interface Made {
  readonly container: Docker.Container;
  readonly shell: SandboxShell;
}

export function dockerProvider(options: DockerProviderOptions): SandboxProvider {
  return new DockerProvider(options);
}

class DockerProvider implements SandboxProvider {
  readonly kind = 'docker';
  readonly isolates = true;
  readonly #options: DockerProviderOptions;
  readonly #docker: Docker;
  readonly #images: Images;
  readonly #toolbox: Toolbox;
  readonly #hermes: PackedHermes;
  readonly #needs = new Map<string, ImageNeeds>();
  #limits: Promise<Record<'cpus' | 'memory_mib' | 'pids', boolean>> | undefined;

  constructor(options: DockerProviderOptions) {
    this.#options = options;
    this.#docker = options.docker;
    this.#images = new Images(options.docker, options.pull);
    this.#toolbox = new Toolbox(options.docker, options.runnerImage, options.fleetId);
    this.#hermes = new PackedHermes(options.docker, options.runnerImage, options.fleetId);
  }

  async engineId(): Promise<string> {
    const info: { ID?: string } = await dockerCall(
      { what: 'asking for the id of the engine', code: 'infra/engine_lost', deadlineMs: PING_MS },
      async () => (await this.#docker.info()) as { ID?: string },
    );
    if (info.ID === undefined || info.ID === '') throw new FleetError('infra/engine_lost', 'the engine has no id');
    return info.ID.replaceAll(/[^A-Za-z0-9._-]/g, '_');
  }

  async ping(): Promise<boolean> {
    try {
      await dockerCall(
        { what: 'ping', code: 'infra/engine_lost', deadlineMs: PING_MS },
        async () => await this.#docker.ping(),
      );
      return true;
    } catch {
      return false;
    }
  }

  async create(spec: SandboxSpec, { signal }: { readonly signal: AbortSignal }): Promise<Sandbox> {
    await this.#checkLimits(spec);
    const image = await this.#images.ensure(spec.image, signal);
    const known = this.#needs.get(image.id);
    const { docker, fleetId } = this.#options;
    const mounts = spec.hasHermes ? [await this.#hermes.mount(signal)] : [];
    const starting = { docker, fleetId, toolbox: this.#toolbox, mounts, signal };
    const { container, shell } =
      known === undefined
        ? await this.#createFirst(spec, image.id, starting)
        : await this.#createKnown(spec, known, starting);
    try {
      const user = spec.user ?? image.user;
      const [{ StartedAt: startedAt }] = await Promise.all([
        dockerCall(
          { what: 'looking at the sandbox', code: 'infra/sandbox_create', signal },
          async () => await stateIn(container),
        ),
        user === '' ? undefined : giveWorkdir(container, shell, { workdir: spec.workdir, user, signal }),
      ]);
      const { name, workdir } = spec;
      return new DockerBox(
        container,
        { id: container.id, name, workdir, shell, startedAt, isBorrowed: false },
        spec.hasHermes ? async (_part, options) => await this.#hermes.inBox(options.signal) : undefined,
      );
    } catch (error) {
      await discard(container);
      throw error;
    }
  }

  async connect(
    descriptor: Readonly<Record<string, unknown>>,
    { signal }: { readonly signal: AbortSignal },
  ): Promise<Sandbox> {
    const known = readDescriptor(descriptor);
    const container = this.#docker.getContainer(known.id);
    const found = await dockerCall(
      { what: 'finding the sandbox', code: 'infra/sandbox_lost', signal },
      async () => await stateIn(container),
    );
    const state = stateOf(found, known.startedAt);
    if (state !== 'running') throw lostSandbox(state);
    return new DockerBox(container, known);
  }

  async borrow(
    access: { readonly descriptor: Readonly<Record<string, unknown>>; readonly workdir: string },
    { signal }: { readonly signal: AbortSignal },
  ): Promise<Sandbox> {
    return await borrowContainer(this.#docker, { toolbox: this.#toolbox, hermes: this.#hermes }, access, signal);
  }

  async list(): ReturnType<SandboxProvider['list']> {
    const filters = { label: [`${LABEL.fleet}=${this.#options.fleetId}`, `${LABEL.role}=${ROLE.sandbox}`] };
    const found = await dockerCall(
      { what: 'listing sandboxes', code: 'infra/engine_lost' },
      async () => await this.#docker.listContainers({ all: true, filters: JSON.stringify(filters) }),
    );
    return found.map(({ Id: id, Labels: labels }) => ({
      name: labels[LABEL.lease] ?? '',
      sessionKey: labels[LABEL.session] ?? '',
      expiresAtS: Number(labels[LABEL.expires]),
      remove: async () => await removeContainer(this.#docker.getContainer(id)),
    }));
  }

  async launchRunner(
    launch: Parameters<SandboxProvider['launchRunner']>[0],
  ): ReturnType<SandboxProvider['launchRunner']> {
    const { docker, fleetId, runnerImage, runnerMemoryMib } = this.#options;
    return await launchDockerRunner({ docker, fleetId, image: runnerImage, memoryMib: runnerMemoryMib, ...launch });
  }

  async close(): Promise<void> {
    // dockerode opens a connection per call; there is nothing to let go of.
  }

  /** The first box of an image shows what the image needs. */
  async #createFirst(spec: SandboxSpec, imageId: string, starting: Starting): Promise<Made> {
    const { signal } = starting;
    let needsSleep = false;
    for (;;) {
      let container: Docker.Container;
      try {
        container = await startContainer(spec, needsSleep, starting);
      } catch (error) {
        if (needsSleep || !isNoProgram(error)) throw error;
        needsSleep = true;
        continue;
      }
      try {
        const shell = await findShell(container, this.#toolbox, { image: spec.image, user: spec.user, signal });
        this.#needs.set(imageId, { sleep: needsSleep, shell });
        return { container, shell };
      } catch (error) {
        const mayHelp = !needsSleep && !signal.aborted && (await lacksSleep(container).catch(() => false));
        await discard(container);
        if (!mayHelp) throw error;
        needsSleep = true;
      }
    }
  }

  async #createKnown(spec: SandboxSpec, { sleep, shell }: ImageNeeds, starting: Starting): Promise<Made> {
    const container = await startContainer(spec, sleep, starting);
    try {
      if (shell.pathSuffix !== undefined && !sleep) await this.#toolbox.putInto(container, starting.signal);
      return { container, shell };
    } catch (error) {
      await discard(container);
      throw error;
    }
  }

  /** A limit that the engine would only warn about is refused. */
  async #checkLimits(spec: SandboxSpec): Promise<void> {
    const known = await (this.#limits ??= this.#readLimits().catch((error: unknown) => {
      this.#limits = undefined;
      throw error;
    }));
    for (const [name, isEnforced] of Object.entries(known))
      if (!isEnforced)
        throw new FleetError(
          'infra/sandbox_limit',
          `the engine cannot enforce sandbox.limits.${name} of image ${spec.image}`,
        );
  }

  async #readLimits(): Promise<Record<'cpus' | 'memory_mib' | 'pids', boolean>> {
    const info = await dockerCall(
      { what: 'asking what the engine can limit', code: 'infra/engine_lost' },
      async () =>
        (await this.#docker.info()) as {
          MemoryLimit?: boolean;
          PidsLimit?: boolean;
          CpuCfsQuota?: boolean;
          CPUCfsQuota?: boolean;
        },
    );
    return {
      cpus: info.CpuCfsQuota ?? info.CPUCfsQuota ?? true,
      memory_mib: info.MemoryLimit ?? true,
      pids: info.PidsLimit ?? true,
    };
  }
}
