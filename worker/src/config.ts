import { availableParallelism } from 'node:os';
import { CommonEnvironment, FleetError, milliseconds, readEnvironment } from '@hermes-fleet/shared';
import { z } from 'zod';

/** Settings of the worker: each with its bounds, default and the sentence that the README's table shows. */
export const WorkerEnvironment = CommonEnvironment.extend({
  FLEET_PROVIDERS: z
    .string()
    .regex(/^[a-z][a-z0-9-]*(,[a-z][a-z0-9-]*)*$/, 'must be a list like docker,local')
    .default('docker')
    .transform((list) => list.split(','))
    .meta({ description: 'Sandbox providers that this worker serves: `docker`, `local`, or both with a comma' }),
  FLEET_SLOTS: z.coerce
    .number()
    .int()
    .min(1)
    .max(10_000)
    .default(16)
    .meta({ description: 'Open sandboxes per engine, counted over all its workers' }),
  FLEET_CONCURRENCY: z.coerce
    .number()
    .int()
    .min(1)
    .max(10_000)
    .default(256)
    .meta({ description: 'Activations and closes that this process runs at once; never less than FLEET_SLOTS' }),
  FLEET_SANDBOX_STARTS: z.coerce
    .number()
    .int()
    .min(1)
    .max(256)
    .default(2 * availableParallelism())
    .meta({ description: 'Sandboxes that this process starts at once (default: twice the cores)' }),
  FLEET_RUNNER_IMAGE: z
    .string()
    .min(1)
    .default('hermes-fleet-runner')
    .meta({ description: 'Image of the runner host, with the pinned Hermes' }),
  FLEET_RUNNER_MEMORY_MIB: z.coerce
    .number()
    .int()
    .min(512)
    .default(8192)
    .meta({ description: 'Memory of the runner host, for all its activations' }),
  FLEET_RUNNER_ACTIVATIONS: z.coerce
    .number()
    .int()
    .min(1)
    .default(1000)
    .meta({ description: 'Activations after which a runner host is replaced by a fresh one' }),
  FLEET_PULL: z
    .enum(['missing', 'never'])
    .default('missing')
    .meta({ description: 'Whether a missing task image is pulled' }),
  FLEET_LOCAL_ROOT: z
    .string()
    .default('')
    .meta({ description: 'Folder of the local provider’s sandboxes (default: below the system’s temporary folder)' }),
  FLEET_LOCAL_PYTHON: z
    .string()
    .default('')
    .meta({ description: 'Python of the local runner, with the pinned Hermes (default: `.venv` of the checkout)' }),
  FLEET_MODEL_TRIES: z.coerce
    .number()
    .int()
    .min(1)
    .max(100)
    .default(5)
    .meta({ description: 'Most tries of one model call' }),
  FLEET_MODEL_BACKOFF_MS: milliseconds()
    .default(500)
    .meta({ description: 'First pause between tries of a model call; doubles, with jitter' }),
  FLEET_MODEL_BACKOFF_LONGEST_MS: milliseconds()
    .default(30_000)
    .meta({ description: 'Longest pause between tries that is not the server’s own Retry-After' }),
  FLEET_MODEL_RETRY_AFTER_MS: milliseconds()
    .default(600_000)
    .meta({ description: 'Longest Retry-After that is waited for; a longer one ends the call' }),
  FLEET_LOCK_MS: milliseconds()
    .default(15_000)
    .meta({ description: 'BullMQ lock, and silence of an owner after which its command is handed out again' }),
  FLEET_STALLED_INTERVAL_MS: milliseconds()
    .default(6_000)
    .meta({ description: 'How often BullMQ looks for jobs of dead workers' }),
  FLEET_RENEW_MS: milliseconds().default(3_000).meta({ description: 'Heartbeat of a running command' }),
  FLEET_TAKEOVER_GRACE_MS: milliseconds()
    .default(5_000)
    .meta({ description: 'How long a silent owner stays suspect before it is replaced' }),
  FLEET_LEASE_MS: milliseconds()
    .default(15_000)
    .meta({ description: 'Lease of a sandbox under construction, and of an engine; renewed each third' }),
  FLEET_DUE_MS: milliseconds().default(3_000).meta({ description: 'How often sessions that are due are looked after' }),
  FLEET_RECHECK_MS: milliseconds()
    .default(30_000)
    .meta({ description: 'First re-check of a dispatched command that nobody takes' }),
  FLEET_REAP_MS: milliseconds()
    .default(15_000)
    .meta({ description: 'How often the engine is searched for sandboxes that nobody holds' }),
  FLEET_REAP_GRACE_MS: milliseconds()
    .default(30_000)
    .meta({ description: 'How long a sandbox must be without a lease, seen twice, before it is removed' }),
  FLEET_SANDBOX_WATCH_MS: milliseconds()
    .default(3_000)
    .meta({ description: 'How often the sandbox of a running activation is looked at' }),
  FLEET_TRIM_MS: milliseconds().default(30_000).meta({ description: 'How often read results are trimmed' }),
  FLEET_RECEIPT_MS: z.coerce
    .number()
    .int()
    .min(300_000)
    .default(86_400_000)
    .meta({ description: 'How long records of closed sessions live; 300 s at least' }),
  FLEET_HOLD_MS: milliseconds()
    .default(600_000)
    .meta({ description: 'How long a lease outlives its session’s time limit' }),
  FLEET_RESULTS_TTL_MS: milliseconds()
    .default(604_800_000)
    .meta({ description: 'How long results live that no consumer group waits for' }),
  FLEET_GROUP_TTL_MS: milliseconds()
    .default(604_800_000)
    .meta({ description: 'Idle time after which a consumer group is dropped' }),
  FLEET_DRAIN_MS: z.coerce.number().int().min(0).default(0).meta({
    description: 'How long SIGTERM waits for running commands before they are given back; 0: until they are done',
  }),
  FLEET_MAX_BEGINS: z.coerce
    .number()
    .int()
    .min(1)
    .max(1000)
    .default(3)
    .meta({ description: 'Times an activation is begun before it is given up as lost (seed: 2 more, close: 7 more)' }),
  FLEET_HEALTH_PORT: z.coerce
    .number()
    .int()
    .min(0)
    .max(65_535)
    .optional()
    .meta({ description: 'Port of /livez and /readyz on 127.0.0.1; none when unset' }),
  FLEET_LOG_LEVEL: z
    .enum(['trace', 'debug', 'info', 'warn', 'error'])
    .default('info')
    .meta({ description: 'Log level' }),
}).check((context) => {
  const value = context.value;
  const require = (holds: boolean, name: keyof typeof value, message: string): void => {
    if (!holds) context.issues.push({ code: 'custom', input: value[name], path: [name], message });
  };
  require(value.FLEET_LEASE_MS >
    2 *
      value.FLEET_RENEW_MS, 'FLEET_LEASE_MS', 'must be more than twice FLEET_RENEW_MS, or living owners lose their lease');
  require(value.FLEET_LOCK_MS >
    2 * value.FLEET_RENEW_MS, 'FLEET_LOCK_MS', 'must be more than twice FLEET_RENEW_MS, or living owners fall silent');
  require(value.FLEET_TAKEOVER_GRACE_MS >
    value.FLEET_RENEW_MS, 'FLEET_TAKEOVER_GRACE_MS', 'must be more than FLEET_RENEW_MS, or living owners are replaced');
});

export type Config = Readonly<z.output<typeof WorkerEnvironment>> & {
  /** Bearer tokens of Model Servers by credential name. Never logged. */
  readonly credentials: ReadonlyMap<string, string>;
};

/** @throws FleetError `refused/config`, naming each variable at fault */
export function loadConfig(env: Readonly<Record<string, string | undefined>>): Config {
  const settings = readEnvironment(WorkerEnvironment, env);
  const credentials = new Map<string, string>();
  for (const [name, value] of Object.entries(env)) {
    const credential = /^FLEET_CREDENTIAL_([A-Z0-9_]{1,64})$/.exec(name)?.[1];
    if (credential === undefined || value === undefined) continue;
    if (!/^[\x21-\x7e]+$/.test(value))
      throw new FleetError('refused/config', `${name} must be printable ASCII without spaces`);
    credentials.set(credential, value);
  }
  return Object.freeze({ ...settings, credentials });
}
