import { randomBytes } from 'node:crypto';
import { FleetError } from '@hermes-fleet/shared';
import type { ExecResult, Sandbox, SandboxProvider, SandboxSpec } from '@hermes-fleet/worker/sandbox/provider';
import { expect } from 'vitest';

/** What a provider's test file brings to the suite. */
export interface ProviderFixture {
  readonly provider: SandboxProvider;
  /** The same kind on the same engine, for another worker of the fleet. */
  readonly peer: SandboxProvider;
  /** The same kind on the same engine, for another fleet. */
  readonly foreign: SandboxProvider;
  /** Laid over the suite's own spec. */
  readonly spec: Partial<SandboxSpec>;
  /** A spec that cannot be made into a box, and the code of its refusal. */
  readonly impossible: Partial<SandboxSpec>;
  /** A user that commands can be run as; undefined: the provider knows no users. */
  readonly otherUser: string | undefined;
  /** Whether boxes have a table of processes of their own. */
  readonly hasOwnProcesses: boolean;
  /** Everything of the fleet that is on the engine, whatever state it is in, asked without the provider. */
  readonly leftovers: () => Promise<string[]>;
  close(): Promise<void>;
}

const EXEC_MS = 60_000;
const HOUR_S = 3600;

/** The suite's view of a fixture: boxes with names of their own, and short words for what the checks do over and over. */
export class Bench {
  readonly fixture: ProviderFixture;

  constructor(fixture: ProviderFixture) {
    this.fixture = fixture;
  }

  spec(more: Partial<SandboxSpec> = {}): SandboxSpec {
    const sessionKey = randomBytes(16).toString('hex');
    return {
      name: `${sessionKey}.${randomBytes(4).toString('hex')}`,
      sessionKey,
      image: 'none',
      workdir: '/workspace',
      user: undefined,
      env: {},
      network: 'none',
      limits: { cpus: 2, memoryMib: 4096, pids: 512 },
      hasHermes: false,
      expiresAtS: Math.floor(Date.now() / 1000) + HOUR_S,
      ...this.fixture.spec,
      ...more,
    };
  }

  async box(more: Partial<SandboxSpec> = {}): Promise<Sandbox & AsyncDisposable> {
    const box = await this.fixture.provider.create(this.spec(more), { signal: deadline() });
    return disposable(box);
  }
}

/** Keeps the methods of a class that has private fields. */
function disposable(box: Sandbox): Sandbox & AsyncDisposable {
  return Object.assign(box, { [Symbol.asyncDispose]: async () => await box.remove() });
}

export function deadline(ms = EXEC_MS): AbortSignal {
  return AbortSignal.timeout(ms);
}

/** Shell text as a command of the box, with the tools that it was given within reach. */
export function shell({ shell: { path, pathSuffix } }: Sandbox, script: string): string[] {
  return [path, '-c', pathSuffix === undefined ? script : `PATH=$PATH:${pathSuffix}; export PATH\n${script}`];
}

export interface RunOptions {
  readonly user?: string;
  readonly workdir?: string;
  readonly env?: Readonly<Record<string, string>>;
  readonly stdin?: Uint8Array;
  readonly signal?: AbortSignal;
  readonly maxBytes?: number;
  readonly deadlineMs?: number;
}

export async function run(
  box: Sandbox,
  script: string | readonly string[],
  options: RunOptions = {},
): Promise<ExecResult> {
  return await box.exec({
    argv: typeof script === 'string' ? shell(box, script) : script,
    signal: deadline(),
    maxBytes: 16 * 1024 * 1024,
    deadlineMs: EXEC_MS,
    ...options,
  });
}

export async function text(box: Sandbox, script: string, options: RunOptions = {}): Promise<string> {
  const { exitCode, stdout, stderr } = await run(box, script, options);
  if (exitCode !== 0) throw new Error(`the command ended with ${exitCode}: ${stderr.toString()}`);
  return stdout.toString();
}

/** A pattern that is not found in the arguments of the shell that looks for it; the dot is a NUL, in the C locale. */
const hidden = (command: string): string => command.replace(' ', '.').replace(/(.)$/, '[$1]');

/** How many processes of the box have `command` as their command line. */
export async function countAlive(box: Sandbox, command: string): Promise<number> {
  const found = await text(box, `LC_ALL=C grep -lsaE '^${hidden(command)}' /proc/[0-9]*/cmdline; true`);
  return found.split('\n').length - 1;
}

let sleepers = 400_000 + (randomBytes(2).readUInt16BE() % 50_000) * 10;

/** A `sleep` that no other test of this machine has. */
export function newSleep(): string {
  return `sleep ${sleepers++}`;
}

/** Kills what {@link newSleep} named, and nothing else: a box may share the processes of the whole machine. */
export async function killAlive(box: Sandbox, command: string): Promise<void> {
  const files = `$(LC_ALL=C grep -lsaE '^${hidden(command)}' /proc/[0-9]*/cmdline)`;
  await text(box, `for f in ${files}; do p=\${f#/proc/}; kill -9 "\${p%/cmdline}"; done 2>/dev/null; true`);
}

/** The code of the FleetError that `work` must reject with. */
export async function codeOf(work: Promise<unknown>): Promise<string> {
  try {
    await work;
  } catch (error) {
    if (error instanceof FleetError) return error.code;
    throw error;
  }
  return 'no error';
}

/** Fails when anything of the fixture's fleets is still on the engine; removes it all the same. */
export async function closeClean(fixture: ProviderFixture): Promise<void> {
  try {
    expect(await fixture.leftovers()).toEqual([]);
  } finally {
    await fixture.close();
  }
}

/** A signal that is aborted on call, with a reason that can be told from others. */
export function abortable(): { readonly signal: AbortSignal; readonly reason: FleetError; readonly abort: () => void } {
  const controller = new AbortController();
  const reason = new FleetError('cancelled/by_caller', 'aborted by the test');
  return { signal: controller.signal, reason, abort: () => controller.abort(reason) };
}
