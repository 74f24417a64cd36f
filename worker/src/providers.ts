import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { FleetError } from '@hermes-fleet/shared';
import Docker from 'dockerode';
import type { Config } from './config.ts';
import { type Log, RateLimitedWarning } from './log.ts';
import { dockerProvider } from './sandbox/docker.ts';
import { localProvider } from './sandbox/local.ts';
import type { SandboxProvider } from './sandbox/provider.ts';

/** Beside `src` and `dist` alike. */
const HOST_SCRIPT = fileURLToPath(new URL('../runner/host.py', import.meta.url));
const CHECKOUT_PYTHON = fileURLToPath(new URL('../../.venv/bin/python', import.meta.url));

/** The providers that the settings name; the only place that names concrete ones. @throws FleetError `refused/config` */
export function createProviders(config: Config, log: Log): SandboxProvider[] {
  return config.FLEET_PROVIDERS.map((kind) => {
    if (kind === 'docker')
      return dockerProvider({
        docker: new Docker(),
        fleetId: config.FLEET_ID,
        runnerImage: config.FLEET_RUNNER_IMAGE,
        runnerMemoryMib: config.FLEET_RUNNER_MEMORY_MIB,
        pull: config.FLEET_PULL,
      });
    if (kind === 'local') return createLocal(config, log);
    throw new FleetError(
      'refused/config',
      `FLEET_PROVIDERS: there is no provider "${kind}" (there are docker and local)`,
    );
  });
}

function createLocal(config: Config, log: Log): SandboxProvider {
  const warnings = new RateLimitedWarning(log, 3_600_000);
  return localProvider({
    fleetId: config.FLEET_ID,
    root:
      config.FLEET_LOCAL_ROOT === '' ? path.join(tmpdir(), `hermes-fleet-${config.FLEET_ID}`) : config.FLEET_LOCAL_ROOT,
    python: config.FLEET_LOCAL_PYTHON === '' ? CHECKOUT_PYTHON : config.FLEET_LOCAL_PYTHON,
    hostScript: HOST_SCRIPT,
    warn: (message) => warnings.warn(message),
  });
}
