import {
  engineQueue,
  FleetError,
  isBorrowed,
  type OwnedSandbox,
  reasonOf,
  type Seed,
  type SeedBody,
  WIRE_VERSION,
} from '@hermes-fleet/shared';
import { probeGaps, probeSandbox, type SandboxProbe } from '../broker/probe.ts';
import type { Command, Outcome } from '../command.ts';
import type { Config } from '../config.ts';
import type { Engine } from '../engine.ts';
import type { Sandbox } from '../sandbox/provider.ts';
import type { SessionDescriptor } from '../session-descriptor.ts';
import { Stopwatch } from '../stopwatch.ts';

const CLEANUP_MS = 30_000;

/** Makes the session's sandbox ready: created, filled, its shell tried, and the pinned Hermes at hand. */
export async function seed(command: Command, config: Config): Promise<Outcome> {
  const { view, cancellation, engine, lease } = command;
  if (view.verdict !== 'run')
    return { class: view.verdict === 'lost' ? 'infra' : 'cancelled', code: view.code, body: null };
  const spec = JSON.parse(view.payload) as Seed;
  if (engine === undefined || lease === undefined || isBorrowed(spec.sandbox))
    throw new FleetError('infra/internal', 'a seed came without a lease, or borrows its sandbox');
  const owned: OwnedSandbox = spec.sandbox;
  const { credential } = spec.model;
  if (credential !== undefined && !config.credentials.has(credential))
    throw new FleetError(
      'infra/credential',
      `this worker has no credential "${credential}" (FLEET_CREDENTIAL_${credential})`,
    );
  cancellation.abortAfter(
    spec.timeouts.seed_s * 1000,
    'infra/timeout_seed',
    `the seed was not done within ${spec.timeouts.seed_s} s`,
  );
  const watch = new Stopwatch();
  let sandbox: Sandbox | undefined;
  const release = async (): Promise<void> => {
    const made = sandbox;
    sandbox = undefined;
    await made?.remove();
  };
  try {
    // Both at once: the runner host takes a second or two the first time, and is there afterwards.
    const { signal } = cancellation;
    const [made, runner] = await settleBoth(
      watch.time('sandbox', async () => (sandbox = await createSandbox(owned, command, engine, config))),
      watch.time('runner', async () => await engine.runners.acquire(signal)),
    );
    const probe = await watch.time('probe', async () => await prepare(made, owned, signal));
    const gaps = [
      ...probeGaps(probe),
      ...(engine.provider.isolates
        ? []
        : [{ code: 'no_isolation', detail: `provider ${engine.provider.kind} does not isolate` }]),
    ];
    const descriptor: SessionDescriptor = {
      provider: engine.provider.kind,
      box: made.descriptor,
      probe,
      hermes_version: runner.facts.hermes,
      gaps,
      created_at: Date.now(),
    };
    const body: SeedBody = {
      wire_version: WIRE_VERSION,
      message: null,
      hermes_version: runner.facts.hermes,
      sandbox: {
        provider: engine.provider.kind,
        id: made.id,
        image: owned.image,
        workdir: made.workdir,
      },
      gaps,
      timings_ms: watch.read(),
    };
    return {
      class: 'ok',
      code: '',
      body,
      seeded: { queue: engineQueue(engine.id), descriptor: JSON.stringify(descriptor) },
      release,
    };
  } catch (error) {
    await release().catch((cause: unknown) =>
      command.log.warn({ reason: reasonOf(cause) }, 'a half-made sandbox is left to the reaper'),
    );
    // What a library says about an aborted call is not the reason; ours is.
    const failure =
      cancellation.reason ??
      (error instanceof FleetError ? error : new FleetError('infra/internal', reasonOf(error), { cause: error }));
    const body: SeedBody = {
      wire_version: WIRE_VERSION,
      message: failure.message,
      hermes_version: null,
      sandbox: null,
      gaps: [],
      timings_ms: watch.read(),
    };
    return {
      class: failure.resultClass === 'cancelled' ? 'cancelled' : 'infra',
      code: failure.shortCode,
      body,
      error: failure,
      release,
    };
  }
}

/** Waits for both, so that nothing of a failed seed is still being made when it answers. */
async function settleBoth<First, Second>(first: Promise<First>, second: Promise<Second>): Promise<[First, Second]> {
  const [one, other] = await Promise.allSettled([first, second]);
  if (one.status === 'rejected') throw one.reason;
  if (other.status === 'rejected') throw other.reason;
  return [one.value, other.value];
}

async function createSandbox(spec: OwnedSandbox, command: Command, engine: Engine, config: Config): Promise<Sandbox> {
  const { lease, at, view, cancellation } = command;
  if (lease === undefined) throw new FleetError('infra/internal', 'no lease');
  return await engine.provider.create(
    {
      name: lease.member,
      sessionKey: at.key,
      image: spec.image,
      workdir: spec.workdir,
      user: spec.user,
      env: spec.env,
      network: spec.network,
      limits: { cpus: spec.limits.cpus, memoryMib: spec.limits.memory_mib, pids: spec.limits.pids },
      expiresAtS: Math.ceil((view.deadline + config.FLEET_HOLD_MS) / 1000),
    },
    { signal: cancellation.signal },
  );
}

async function prepare(sandbox: Sandbox, spec: OwnedSandbox, signal: AbortSignal): Promise<SandboxProbe> {
  if (spec.files.length > 0) {
    const files = spec.files.map(({ path, text, base64 }) => ({
      path,
      content: text === undefined ? Buffer.from(base64 ?? '', 'base64') : Buffer.from(text),
    }));
    await sandbox.putFiles(files, { signal, deadlineMs: CLEANUP_MS, user: spec.user });
  }
  return await probeSandbox(sandbox, { user: spec.user, signal, deadlineMs: CLEANUP_MS });
}
