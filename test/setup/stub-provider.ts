import { existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { localProvider } from '@hermes-fleet/worker/sandbox/local';
import type { Sandbox, SandboxProvider } from '@hermes-fleet/worker/sandbox/provider';
import { stubRunner } from './stub-runner.ts';

/** An image `until:PATH` is ready once that file is there: a sandbox that takes its time. */
const UNTIL = 'until:';
const LOOK_MS = 20;

/**
 * The provider `stub`: folders and child processes as the local one, so that it passes the conformance suite, and the
 * smallest agent in place of Hermes. For tests of everything but Hermes and Docker.
 *
 * @param options.engine workers with the same engine share their sandboxes and slots
 */
export function stubProvider(options: {
  readonly fleetId: string;
  readonly root: string;
  readonly engine?: string;
}): SandboxProvider {
  const local = localProvider({
    fleetId: options.fleetId,
    root: options.root,
    python: '',
    hostScript: '',
    warn: () => undefined,
  });
  return {
    ...local,
    kind: 'stub',
    engineId: async () => options.engine ?? 'stub',
    create: async (spec, { signal }) => {
      const sandbox = await local.create(spec, { signal });
      if (spec.image.startsWith(UNTIL)) await waitFor(spec.image.slice(UNTIL.length), sandbox, signal);
      return sandbox;
    },
    launchRunner: async ({ onOutput }) => stubRunner(onOutput),
  };
}

async function waitFor(file: string, sandbox: Sandbox, signal: AbortSignal): Promise<void> {
  try {
    while (!existsSync(file)) await sleep(LOOK_MS, undefined, { signal });
  } catch (error) {
    await sandbox.remove();
    throw error;
  }
}
