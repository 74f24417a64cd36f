import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { FleetError } from '@hermes-fleet/shared';
import type Docker from 'dockerode';
import { z } from 'zod';
import { killByMark, quote } from '../broker/shell-wrapper.ts';
import { dockerCall, statusOf } from './docker-call.ts';
import { openProcess, runBlocking } from './docker-exec.ts';
import {
  type BlockingExecOptions,
  type ExecResult,
  type FetchedFile,
  type Sandbox,
  type SandboxFile,
  type SandboxShell,
  type SandboxState,
  type SandboxUsage,
  lostSandbox,
} from './provider.ts';

const NOT_FOUND = 404;
const CONFLICT = 409;
const REMOVE_MS = 30_000;
const REMOVE_PAUSE_MS = 50;
const KILL_MS = 10_000;
const STATS_MS = 40;
const KILLED = 137;
/** How long a box that is being killed may look alive after its commands have ended. */
const DYING_MS = 300;
const DYING_PAUSE_MS = 100;
const NANOSECONDS = 1e9;
const MIB = 1024 * 1024;
const PROBLEMS: Readonly<Record<string, string>> = {
  link: 'is a link',
  directory: 'is a directory',
  other: 'is no regular file',
  missing: 'missing',
};

const DockerDescriptor = z.object({
  // It becomes part of a path of the engine's API.
  id: z.string().regex(/^[0-9a-f]{12,64}$/, 'must be the id of a container'),
  name: z.string(),
  workdir: z.string(),
  shell: z.object({ path: z.string(), isBash: z.boolean(), pathSuffix: z.string().optional() }),
  startedAt: z.string(),
  isBorrowed: z.boolean(),
});

interface DockerDescriptor {
  readonly id: string;
  readonly name: string;
  readonly workdir: string;
  readonly shell: SandboxShell;
  /** As the engine tells it; another one says that the container was restarted. */
  readonly startedAt: string;
  /** Somebody else's: never removed. */
  readonly isBorrowed: boolean;
}

/** @throws FleetError `infra/sandbox_lost` for one that leads to no container */
export function readDescriptor(descriptor: Readonly<Record<string, unknown>>): DockerDescriptor {
  const { data, error } = DockerDescriptor.safeParse(descriptor);
  if (data === undefined)
    throw new FleetError('infra/sandbox_lost', `the descriptor leads to no sandbox (${z.prettifyError(error)})`);
  return { ...data, shell: { ...data.shell, pathSuffix: data.shell.pathSuffix } };
}

/** What an inspected container is to those who knew it since `startedAt`. */
export function stateOf(
  state: Pick<Docker.ContainerInspectInfo['State'], 'Running' | 'Paused' | 'OOMKilled' | 'StartedAt'>,
  startedAt: string,
): Exclude<SandboxState, 'gone'> {
  if (!state.Running) return state.OOMKilled ? 'out_of_memory' : 'stopped';
  if (state.StartedAt !== startedAt) return 'restarted';
  return state.Paused ? 'paused' : 'running';
}

export async function stateIn(container: Docker.Container): Promise<Docker.ContainerInspectInfo['State']> {
  return (await container.inspect()).State;
}

/** Removes a container with everything in it; one that is gone is success, one that is going is waited for. */
export async function removeContainer(container: Docker.Container): Promise<void> {
  const call = { what: 'removing a sandbox', code: 'infra/sandbox_exec', deadlineMs: REMOVE_MS } as const;
  const giveUpAt = performance.now() + REMOVE_MS;
  for (;;) {
    const isGone = await dockerCall(call, async () => {
      try {
        await container.remove({ force: true, v: true });
        return true;
      } catch (error) {
        if (statusOf(error) === NOT_FOUND) return true;
        if (statusOf(error) === CONFLICT && performance.now() < giveUpAt) return false;
        throw error;
      }
    });
    if (isGone) return;
    await sleep(REMOVE_PAUSE_MS);
  }
}

/** A running container as a sandbox. */
export class DockerBox implements Sandbox {
  readonly name: string;
  readonly id: string;
  readonly workdir: string;
  readonly shell: SandboxShell;
  readonly #container: Docker.Container;
  readonly #startedAt: string;
  readonly #isBorrowed: boolean;

  readonly giveHermes?: NonNullable<Sandbox['giveHermes']>;

  constructor(container: Docker.Container, descriptor: DockerDescriptor, giveHermes?: Sandbox['giveHermes']) {
    if (giveHermes !== undefined) this.giveHermes = giveHermes;
    this.#container = container;
    this.#startedAt = descriptor.startedAt;
    this.#isBorrowed = descriptor.isBorrowed;
    this.id = descriptor.id.slice(0, 12);
    this.name = descriptor.name;
    this.workdir = descriptor.workdir;
    this.shell = descriptor.shell;
  }

  get descriptor(): Readonly<Record<string, unknown>> {
    return {
      id: this.#container.id,
      name: this.name,
      workdir: this.workdir,
      shell: this.shell,
      startedAt: this.#startedAt,
      isBorrowed: this.#isBorrowed,
    };
  }

  async exec(options: BlockingExecOptions): Promise<ExecResult> {
    const mark = `HF_KILL=${randomBytes(9).toString('hex')}`;
    const [name = '', value = ''] = mark.split('=');
    const marked = { ...options, env: { ...options.env, [name]: value } };
    const result = await runBlocking(this.#container, marked, async () => {
      // With a deadline of its own: what it ends may be why the caller's is over.
      const script = this.#withPath(killByMark(mark, '$$'));
      await runBlocking(
        this.#container,
        {
          argv: [this.shell.path, '-c', script],
          user: options.user,
          signal: AbortSignal.timeout(KILL_MS),
          maxBytes: 0,
          deadlineMs: KILL_MS,
        },
        async () => undefined,
      );
    });
    if (result.exitCode === KILLED) await this.#checkAlive();
    return result;
  }

  async openProcess(options: Parameters<typeof openProcess>[1]): ReturnType<typeof openProcess> {
    return await openProcess(this.#container, options);
  }

  async putFiles(
    files: readonly SandboxFile[],
    options: { readonly signal: AbortSignal; readonly deadlineMs: number; readonly user?: string | undefined },
  ): Promise<void> {
    for (const { path, content } of files) {
      const script = this.#withPath(
        `cd -- ${quote(this.workdir)} && case ${quote(path)} in */*) mkdir -p -- "$(dirname -- ${quote(path)})" ;; esac && cat > ${quote(path)}`,
      );
      const result = await this.exec({
        argv: [this.shell.path, '-c', script],
        user: options.user,
        stdin: content,
        signal: options.signal,
        maxBytes: 4096,
        deadlineMs: options.deadlineMs,
      });
      if (result.exitCode === 0) continue;
      const reason = result.stderr.toString().trim().slice(0, 300);
      const code = /no space left|quota exceeded/i.test(reason) ? 'infra/sandbox_disk' : 'infra/sandbox_create';
      throw new FleetError(code, `file ${path} could not be written (${reason})`);
    }
  }

  async getFiles(
    paths: readonly string[],
    options: { readonly signal: AbortSignal; readonly deadlineMs: number; readonly maxBytes: number },
  ): Promise<FetchedFile[]> {
    const fetched: FetchedFile[] = [];
    let left = options.maxBytes;
    for (const path of paths) {
      const file = await this.#getFile(path, left, options);
      left -= file.content?.length ?? 0;
      fetched.push(file);
    }
    return fetched;
  }

  /** Engines publish these once a second, and a close must not wait for that: what is late is left out. */
  async usage({ countsOom } = { countsOom: false }): Promise<SandboxUsage> {
    const [stats, oomKills] = await Promise.all([
      Promise.race([this.#stats(), sleep(STATS_MS, undefined, { ref: false })]),
      countsOom ? this.#oomKills() : undefined,
    ]);
    const memory: { max_usage?: number } | undefined = stats?.memory_stats;
    const cpu: number | undefined = stats?.cpu_stats?.cpu_usage?.total_usage;
    return {
      cpuTimeS: cpu === undefined ? undefined : cpu / NANOSECONDS,
      peakMemoryMib: memory?.max_usage === undefined ? undefined : memory.max_usage / MIB,
      oomKills,
    };
  }

  async state(): Promise<SandboxState> {
    return await dockerCall({ what: 'asking for the state of a sandbox', code: 'infra/sandbox_exec' }, async () => {
      try {
        return stateOf(await stateIn(this.#container), this.#startedAt);
      } catch (error) {
        if (statusOf(error) === NOT_FOUND) return 'gone';
        throw error;
      }
    });
  }

  async remove(): Promise<void> {
    if (!this.#isBorrowed) await removeContainer(this.#container);
  }

  /** Size first: a sparse file of terabytes must not be read; and no link is followed. */
  async #getFile(
    path: string,
    maxBytes: number,
    options: { readonly signal: AbortSignal; readonly deadlineMs: number },
  ): Promise<FetchedFile> {
    const name = quote(path);
    const script = this.#withPath(
      `cd -- ${quote(this.workdir)} || exit 1; if [ -L ${name} ]; then echo link; elif [ -d ${name} ]; then echo directory; elif [ ! -e ${name} ]; then echo missing; elif [ ! -f ${name} ]; then echo other; else stat -c %s -- ${name} && head -c ${Math.max(0, maxBytes)} -- ${name}; fi`,
    );
    const { stdout } = await this.exec({
      argv: [this.shell.path, '-c', script],
      signal: options.signal,
      maxBytes: maxBytes + 64,
      deadlineMs: options.deadlineMs,
    });
    const end = stdout.indexOf(10);
    const first = stdout.subarray(0, end < 0 ? stdout.length : end).toString();
    if (!/^\d+$/.test(first))
      return { path, content: undefined, size: 0, problem: PROBLEMS[first] ?? 'could not be read' };
    return { path, content: stdout.subarray(end + 1), size: Number(first) };
  }

  async #stats(): Promise<Docker.ContainerStats | undefined> {
    return await dockerCall(
      { what: 'reading the usage of a sandbox', code: 'infra/sandbox_exec' },
      async () => await this.#container.stats({ stream: false, 'one-shot': true }),
    ).catch(() => undefined);
  }

  /** As the kernel counts for the control group: version 1 says it in one file, version 2 in another. */
  async #oomKills(): Promise<number | undefined> {
    const script = this.#withPath(
      'cat /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events 2>/dev/null | grep "^oom_kill "',
    );
    const { stdout } = await this.exec({
      argv: [this.shell.path, '-c', script],
      signal: AbortSignal.timeout(KILL_MS),
      maxBytes: 4096,
      deadlineMs: KILL_MS,
    });
    const count = /^oom_kill (\d+)/.exec(stdout.toString())?.[1];
    return count === undefined ? undefined : Number(count);
  }

  /** A box that is killed takes its commands along, as if each had been killed. @throws FleetError `infra/sandbox_lost` */
  async #checkAlive(): Promise<void> {
    for (let waitedMs = 0; waitedMs <= DYING_MS; waitedMs += DYING_PAUSE_MS) {
      const state = await this.state();
      if (state !== 'running') throw lostSandbox(state);
      await sleep(DYING_PAUSE_MS);
    }
  }

  #withPath(script: string): string {
    return this.shell.pathSuffix === undefined ? script : `PATH=$PATH:${this.shell.pathSuffix}; export PATH\n${script}`;
  }
}
