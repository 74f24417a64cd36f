import { readFile } from 'node:fs/promises';
import { FleetError, issuesOf, reasonOf, ResponsesRequest, Seed, type SeedInput } from '@hermes-fleet/shared';
import { z } from 'zod';

const part = z.record(z.string(), z.json());

/**
 * What the sessions of a sweep have in common: the parts of a seed, and `request` with defaults of `responses_create_params`.
 * A row's `session` has the same form.
 */
export const SweepConfig = z.strictObject({
  sandbox: part.optional(),
  hermes: part.optional(),
  model: part.optional(),
  tool_accesses: z.array(z.json()).optional(),
  budgets: part.optional(),
  timeouts: part.optional(),
  collect: part.optional(),
  request: part.optional(),
});
export type SweepConfig = z.infer<typeof SweepConfig>;

/** What a row makes of a configuration. */
export interface MergedRow {
  readonly seed: Omit<SeedInput, 'session_id' | 'reply_to' | 'identity'>;
  readonly request: Readonly<Record<string, unknown>>;
}

/**
 * Reads and checks a configuration file.
 *
 * @throws FleetError `refused/invalid`, with the file and each field at fault
 */
export async function readSweepConfig(file: string): Promise<SweepConfig> {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    throw new FleetError('refused/invalid', `${file}: cannot be read (${reasonOf(error)})`, { cause: error });
  }
  let json: unknown;
  try {
    json = JSON.parse(text.replace(/^\u{feff}/u, ''));
  } catch (error) {
    throw new FleetError('refused/invalid', `${file}: is not JSON (${reasonOf(error)})`, { cause: error });
  }
  return checkSweepConfig(json, file);
}

/** @throws FleetError `refused/invalid` */
export function checkSweepConfig(json: unknown, file: string): SweepConfig {
  const config = SweepConfig.safeParse(json);
  if (!config.success) throw new FleetError('refused/invalid', `${file}: ${issuesOf(config.error)}`);
  // A row may give what is missing here; stand-ins keep that from hiding what is wrong with the rest.
  const { seed, request } = mergeRow(config.data, undefined, { input: 'a task' });
  const whole = Seed.safeParse({
    session_id: 'template',
    ...seed,
    sandbox: { ...(isBorrowing(seed.sandbox) ? {} : { image: 'of-the-row' }), ...(seed.sandbox as object) },
    model: { base_url: 'http://of-the-row', name: 'of-the-row', ...(seed.model as object) },
  });
  if (!whole.success) throw new FleetError('refused/invalid', `${file}: ${issuesOf(whole.error)}`);
  const defaults = ResponsesRequest.safeParse(request);
  if (!defaults.success)
    throw new FleetError(
      'refused/invalid',
      `${file}: request: ${issuesOf(defaults.error).replaceAll('; ', '; request: ')}`,
    );
  return config.data;
}

/**
 * The row wins over its configuration, field by field and one level deep: `session.sandbox.image` replaces
 * `sandbox.image` and leaves the other fields, `session.sandbox.limits` replaces all limits, `session.tool_accesses` the whole
 * list. In the request, `responses_create_params` wins over `session.request`, and that over `request`.
 */
export function mergeRow(
  config: SweepConfig,
  session: SweepConfig | undefined,
  params: Readonly<Record<string, unknown>>,
): MergedRow {
  const accesses = session?.tool_accesses ?? config.tool_accesses;
  const merged = {
    sandbox: { ...config.sandbox, ...session?.sandbox },
    model: { ...config.model, ...session?.model },
    ...both('hermes', config, session),
    ...both('budgets', config, session),
    ...both('timeouts', config, session),
    ...both('collect', config, session),
    ...(accesses === undefined ? {} : { tool_accesses: accesses }),
  };
  return {
    // The seed's schema judges it.
    seed: merged as unknown as MergedRow['seed'],
    request: { ...config.request, ...session?.request, ...params },
  };
}

function both(
  name: 'hermes' | 'budgets' | 'timeouts' | 'collect',
  config: SweepConfig,
  session: SweepConfig | undefined,
): Record<string, unknown> {
  if (config[name] === undefined && session?.[name] === undefined) return {};
  return { [name]: { ...config[name], ...session?.[name] } };
}

const isBorrowing = (sandbox: object): boolean => 'access' in sandbox;
