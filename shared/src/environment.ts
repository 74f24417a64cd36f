import { z } from 'zod';
import { FleetError } from './failure.ts';

/** Milliseconds as a setting: an integer from 1, in text. */
export const milliseconds = () => z.coerce.number().int().min(1);

/** Settings that producers and workers share. The text of `meta` is the README's. */
export const CommonEnvironment = z.object({
  FLEET_REDIS_URL: z
    .url({ protocol: /^rediss?$/, error: 'must be a redis:// or rediss:// URL' })
    .meta({ description: 'Redis (6.2 or newer, or Valkey), as redis:// or rediss://' }),
  FLEET_ID: z
    .string()
    .regex(/^[A-Za-z0-9._-]{1,64}$/, 'must be 1 to 64 of A-Z, a-z, 0-9, ".", "_" and "-"')
    .default('hf')
    .meta({ description: 'Name of the fleet: prefix of its keys, label of its sandboxes' }),
  FLEET_ALLOW_EVICTION: z
    .stringbool()
    .default(false)
    .meta({ description: 'Run on a Redis that may evict keys (and lose sessions)' }),
  FLEET_MAX_BODY_MIB: z.coerce
    .number()
    .int()
    .min(1)
    .max(512)
    .default(64)
    .meta({ description: 'Largest command or result body, in MiB; a larger result is cut and says so' }),
});

/** Names beginning with `FLEET_` that are not ours to judge. */
const FOREIGN = /^FLEET_(CREDENTIAL_[A-Z0-9_]+|TEST_.*|GYM_.*|PYTHON)$/;

/**
 * Reads settings from `FLEET_*` variables; an unknown one is refused, so that a typing error cannot pass unseen.
 *
 * @param foreign more names that another program of the fleet reads
 * @throws FleetError `refused/config`, naming each variable at fault
 */
export function readEnvironment<Shape extends z.core.$ZodLooseShape>(
  schema: z.ZodObject<Shape>,
  env: Readonly<Record<string, string | undefined>>,
  foreign: readonly string[] = [],
): z.output<z.ZodObject<Shape>> {
  const own = Object.entries(env).filter(
    ([name, value]) =>
      name.startsWith('FLEET_') && !FOREIGN.test(name) && value !== undefined && !foreign.includes(name),
  );
  const unknown = own.map(([name]) => name).filter((name) => !(name in schema.shape));
  if (unknown.length > 0)
    throw new FleetError('refused/config', `unknown setting ${unknown.join(', ')} (a typing error?)`);
  const parsed = schema.safeParse(Object.fromEntries(own));
  if (parsed.success) return parsed.data;
  throw new FleetError('refused/config', z.prettifyError(parsed.error));
}
