import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { randomBytes } from 'node:crypto';
import { FleetClient } from '@hermes-fleet/producer';
import type { SeedInput } from '@hermes-fleet/shared';
import { ModelServer } from './model-server.ts';
import { echoScript } from './model-scripts.ts';
import { type Program, startProgram } from './processes.ts';

/** Short times, so that takeovers and trims happen within a test. */
export const QUICK: Readonly<Record<string, string>> = {
  FLEET_LOCK_MS: '3000',
  FLEET_STALLED_INTERVAL_MS: '1000',
  FLEET_RENEW_MS: '600',
  FLEET_TAKEOVER_GRACE_MS: '1500',
  FLEET_LEASE_MS: '3000',
  FLEET_DUE_MS: '500',
  FLEET_RECHECK_MS: '2000',
  FLEET_REAP_MS: '1000',
  FLEET_REAP_GRACE_MS: '2000',
  FLEET_TRIM_MS: '1000',
  FLEET_MODEL_BACKOFF_MS: '50',
};

export interface TestFleet extends AsyncDisposable {
  readonly id: string;
  readonly client: FleetClient;
  readonly model: ModelServer;
  /** Folder of the sandboxes. */
  readonly root: string;
  readonly workers: Program[];
  /** Starts another worker process and waits until it is ready. */
  addWorker(env?: Readonly<Record<string, string>>): Promise<Program>;
  /** A seed on the stub provider for the model `name` of the scripted server. */
  seed(sessionId: string, name?: string, more?: Partial<SeedInput>): SeedInput;
}

/** A fleet of its own in the shared Redis: worker processes on the stub provider, a scripted Model Server, a client. */
export async function startFleet(options: {
  readonly redisUrl: string;
  readonly workers?: number;
  readonly env?: Readonly<Record<string, string>>;
  readonly program?: string;
  readonly provider?: string;
}): Promise<TestFleet> {
  const id = `t${randomBytes(4).toString('hex')}`;
  const root = await mkdtemp(path.join(tmpdir(), 'fleet-test-'));
  const model = await ModelServer.start();
  model.script('echo', echoScript);
  const client = await FleetClient.connect({ redisUrl: options.redisUrl, fleetId: id });
  const workers: Program[] = [];
  const fleet: TestFleet = {
    id,
    client,
    model,
    root,
    workers,
    addWorker: async (env = {}) => {
      const args = options.program === undefined ? [] : ['start'];
      const worker = startProgram(options.program ?? 'test/setup/stub-worker-main.ts', args, {
        FLEET_REDIS_URL: options.redisUrl,
        FLEET_ID: id,
        FLEET_LOCAL_ROOT: root,
        ...QUICK,
        ...options.env,
        ...env,
      });
      workers.push(worker);
      await worker.line((line) => line.includes('"worker started"'));
      return worker;
    },
    seed: (sessionId, name = 'echo', more = {}) => ({
      session_id: sessionId,
      sandbox: { provider: options.provider ?? 'stub', image: 'none' },
      model: { base_url: model.url, name },
      ...more,
    }),
    async [Symbol.asyncDispose]() {
      await Promise.all(workers.map(async (worker) => await worker[Symbol.asyncDispose]()));
      await client[Symbol.asyncDispose]();
      await model.close();
      await rm(root, { recursive: true, force: true });
    },
  };
  for (let n = 0; n < (options.workers ?? 1); n++) await fleet.addWorker();
  return fleet;
}
