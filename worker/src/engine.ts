import { FleetError, reasonOf, type Scripts } from '@hermes-fleet/shared';
import type { Config } from './config.ts';
import { RunnerPool } from './hermes/runner-pool.ts';
import type { Log } from './log.ts';
import type { SandboxProvider } from './sandbox/provider.ts';
import { Slots } from './slots.ts';

/** One place where this worker makes sandboxes: a provider, the id of what is behind it, its slots and its runner host. */
export interface Engine {
  readonly id: string;
  readonly provider: SandboxProvider;
  readonly slots: Slots;
  readonly runners: RunnerPool;
}

/** @throws FleetError `infra/engine_lost` when the engine does not answer */
export async function openEngine(
  provider: SandboxProvider,
  scripts: Scripts,
  config: Config,
  log: Log,
): Promise<Engine> {
  const id = await provider.engineId().catch((error: unknown) => {
    const reason = error instanceof FleetError ? error.message : reasonOf(error);
    throw new FleetError('infra/engine_lost', `the ${provider.kind} engine does not answer: ${reason}`, {
      cause: error,
    });
  });
  return {
    id,
    provider,
    slots: new Slots(scripts, id, config.FLEET_SLOTS, config.FLEET_SANDBOX_STARTS),
    runners: new RunnerPool(
      provider,
      { activations: config.FLEET_RUNNER_ACTIVATIONS },
      log.child({ engine: id.slice(0, 12) }),
    ),
  };
}
