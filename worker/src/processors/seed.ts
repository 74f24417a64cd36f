import {
  engineQueue,
  FleetError,
  isBorrowed,
  type ObservationGap,
  reasonOf,
  sandboxUser,
  type Seed,
  type SeedBody,
  WIRE_VERSION,
} from '@hermes-fleet/shared';
import { probeGaps, probeSandbox, type SandboxProbe } from '../broker/probe.ts';
import type { Command, Outcome } from '../command.ts';
import type { Config } from '../config.ts';
import type { Engine } from '../engine.ts';
import { prepareInside } from '../hermes/inside.ts';
import { HERMES_VERSION } from '../hermes/pinned-version.ts';
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
  if (engine === undefined || lease === undefined)
    throw new FleetError('infra/internal', 'a seed came without a lease');
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
    const { signal } = cancellation;
    const isInside = spec.hermes.placement === 'inside';
    // Both at once: the runner host takes a second or two the first time, and is there afterwards.
    const [made, runner] = await settleBoth(
      watch.time('sandbox', async () => (sandbox = await sandboxOf(spec, command, engine, config))),
      isInside ? undefined : watch.time('runner', async () => await engine.runners.acquire(signal)),
    );
    const probe = await watch.time('probe', async () => await prepare(made, spec, signal));
    const user = sandboxUser(spec.sandbox);
    const inside = isInside
      ? await watch.time(
          'hermes',
          async () => await prepareInside({ sandbox: made, sessionKey: command.at.key, user }, signal),
        )
      : null;
    const version = runner?.facts.hermes ?? HERMES_VERSION;
    const gaps = [...probeGaps(probe), ...isolationGaps(engine, isInside)];
    const descriptor: SessionDescriptor = {
      provider: engine.provider.kind,
      sandbox_id: made.id,
      box: made.descriptor,
      probe,
      hermes_version: version,
      inside,
      gaps,
      created_at: Date.now(),
    };
    const body: SeedBody = {
      wire_version: WIRE_VERSION,
      message: null,
      hermes_version: version,
      hermes_origin: inside?.origin ?? 'runner',
      sandbox: {
        provider: engine.provider.kind,
        id: made.id,
        image: isBorrowed(spec.sandbox) ? null : spec.sandbox.image,
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
      hermes_origin: null,
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
async function settleBoth<First, Second>(
  first: Promise<First>,
  second: Promise<Second> | undefined,
): Promise<[First, Second | undefined]> {
  const [one, other] = await Promise.allSettled([first, second]);
  if (one.status === 'rejected') throw one.reason;
  if (other.status === 'rejected') throw other.reason;
  return [one.value, other.value];
}

function isolationGaps({ provider }: Engine, isInside: boolean): ObservationGap[] {
  if (!provider.isolates) return [{ code: 'no_isolation', detail: `provider ${provider.kind} does not isolate` }];
  return isInside ? [{ code: 'no_isolation', detail: 'Hermes runs inside the task sandbox' }] : [];
}

async function sandboxOf(spec: Seed, command: Command, engine: Engine, config: Config): Promise<Sandbox> {
  const { lease, at, view, cancellation } = command;
  const { sandbox: wanted } = spec;
  const { signal } = cancellation;
  if (lease === undefined) throw new FleetError('infra/internal', 'no lease');
  if (isBorrowed(wanted)) {
    const { connection, workdir } = wanted.access;
    if (engine.provider.borrow === undefined)
      throw new FleetError(
        'infra/sandbox_lost',
        `provider ${engine.provider.kind} has no sandbox that could be borrowed`,
      );
    return await engine.provider.borrow({ descriptor: connection.descriptor, workdir }, { signal });
  }
  return await engine.provider.create(
    {
      name: lease.member,
      sessionKey: at.key,
      image: wanted.image,
      workdir: wanted.workdir,
      user: wanted.user,
      env: wanted.env,
      network: wanted.network,
      limits: { cpus: wanted.limits.cpus, memoryMib: wanted.limits.memory_mib, pids: wanted.limits.pids },
      hasHermes: spec.hermes.placement === 'inside',
      expiresAtS: Math.ceil((view.deadline + config.FLEET_HOLD_MS) / 1000),
    },
    { signal },
  );
}

async function prepare(sandbox: Sandbox, { sandbox: spec }: Seed, signal: AbortSignal): Promise<SandboxProbe> {
  if (isBorrowed(spec)) return await probeSandbox(sandbox, { user: undefined, signal, deadlineMs: CLEANUP_MS });
  if (spec.files.length > 0) {
    const files = spec.files.map(({ path, text, base64 }) => ({
      path,
      content: text === undefined ? Buffer.from(base64 ?? '', 'base64') : Buffer.from(text),
    }));
    await sandbox.putFiles(files, { signal, deadlineMs: CLEANUP_MS, user: spec.user });
  }
  return await probeSandbox(sandbox, { user: spec.user, signal, deadlineMs: CLEANUP_MS });
}
