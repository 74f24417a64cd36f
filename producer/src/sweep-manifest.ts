import { randomBytes } from 'node:crypto';
import { open, readFile, rename, rm } from 'node:fs/promises';
import { FleetError, issuesOf, reasonOf } from '@hermes-fleet/shared';
import { z } from 'zod';
import { SweepConfig } from './sweep-config.ts';
import { digestOf, type Tasks } from './sweep-tasks.ts';

const SweepId = z
  .string()
  .regex(/^[A-Za-z0-9._-]{1,100}$/, 'a sweep id is 1 to 100 of A-Z, a-z, 0-9, ".", "_" and "-"');

/** What a sweep is made of: written before anything is handed in, and what a resumed sweep must agree with. */
export const Manifest = z.object({
  manifest_version: z.literal(1),
  fleet_version: z.string(),
  /** Hermes versions that the results name. */
  hermes_versions: z.array(z.string()),
  sweep_id: SweepId,
  /** Part of every session id, so that another sweep of the same name does not meet this one's sessions. */
  run_key: z.string().min(1),
  /** Counts up when the sweep is cancelled: what is resumed after it are new sessions of a sweep of a new name. */
  round: z.number().int().min(1),
  config: SweepConfig,
  config_digest: z.string(),
  tasks: z.object({
    file: z.string(),
    digest: z.string(),
    /** Index, line and digest of each row. */
    rows: z.array(z.tuple([z.number().int(), z.number().int(), z.string()])),
    refused: z.number().int(),
  }),
  options: z.object({
    repeats: z.number().int().min(1),
    limit: z.number().int().min(0).nullable(),
    skip_invalid: z.boolean(),
    observations: z.boolean(),
  }),
  created_at: z.string(),
});
export type Manifest = z.infer<typeof Manifest>;

export interface ManifestInput {
  readonly fleetVersion: string;
  readonly sweepId: string | undefined;
  readonly config: SweepConfig;
  readonly tasksFile: string;
  readonly tasks: Tasks;
  readonly options: Manifest['options'];
}

/** @throws FleetError `refused/invalid` for a sweep id that cannot be one */
export function newManifest(input: ManifestInput): Manifest {
  const sweepId = SweepId.safeParse(input.sweepId ?? `${stamp()}-${randomBytes(3).toString('hex')}`);
  if (!sweepId.success) throw new FleetError('refused/invalid', `--sweep-id: ${issuesOf(sweepId.error)}`);
  return {
    manifest_version: 1,
    fleet_version: input.fleetVersion,
    hermes_versions: [],
    sweep_id: sweepId.data,
    run_key: randomBytes(4).toString('hex'),
    round: 1,
    config: input.config,
    config_digest: configDigest(input.config),
    tasks: {
      file: input.tasksFile,
      digest: input.tasks.digest,
      rows: input.tasks.rows.map(({ index, line, digest }) => [index, line, digest]),
      refused: input.tasks.errors.length,
    },
    options: input.options,
    created_at: new Date().toISOString(),
  };
}

/** Name under which the fleet knows the sweep. */
export function fleetSweepId(manifest: Manifest): string {
  return manifest.round === 1 ? manifest.sweep_id : `${manifest.sweep_id}.${manifest.round}`;
}

/** Undefined when there is none. @throws FleetError `refused/invalid` */
export async function readManifest(file: string): Promise<Manifest | undefined> {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw new FleetError('refused/invalid', `${file}: cannot be read (${reasonOf(error)})`, { cause: error });
  }
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new FleetError('refused/invalid', `${file}: is not JSON (${reasonOf(error)})`, { cause: error });
  }
  const manifest = Manifest.safeParse(json);
  if (!manifest.success) throw new FleetError('refused/invalid', `${file}: ${issuesOf(manifest.error)}`);
  return manifest.data;
}

/** There is always a whole one: the old, or the new. */
export async function writeManifest(file: string, manifest: Manifest): Promise<void> {
  const temporary = `${file}.tmp`;
  try {
    const handle = await open(temporary, 'w');
    try {
      await handle.writeFile(`${JSON.stringify(manifest, null, 1)}\n`);
      await handle.sync();
    } finally {
      await handle.close();
    }
    await rename(temporary, file);
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => undefined);
    throw new FleetError('refused/config', `${file}: cannot be written (${reasonOf(error)})`, { cause: error });
  }
}

/**
 * The field in which a sweep is no longer the one that was begun; undefined when it is. More repeats, and more of its rows, are
 * welcome: what is done stays done.
 */
export function differenceOf(begun: Manifest, now: Manifest): string | undefined {
  const config = firstDifference(begun.config, now.config, 'config');
  if (config !== undefined) return config;
  const rows = new Map(now.tasks.rows.map((row) => [row[0], row]));
  for (const [index, line, digest] of begun.tasks.rows) {
    const row = rows.get(index);
    if (row === undefined) return `tasks: row ${index} (line ${line}) is not there any more`;
    if (row[2] !== digest) return `tasks: row ${index} (line ${row[1]}) has changed`;
  }
  if (begun.tasks.digest !== now.tasks.digest) return `tasks: ${now.tasks.file} is not the file it was`;
  if (now.options.repeats < begun.options.repeats)
    return `repeats: ${begun.options.repeats} before, ${now.options.repeats} now`;
  if (now.sweep_id !== begun.sweep_id) return `sweep_id: ${begun.sweep_id} before, ${now.sweep_id} now`;
  return undefined;
}

function firstDifference(before: unknown, now: unknown, path: string): string | undefined {
  if (isBranch(before) && isBranch(now)) {
    for (const key of new Set([...Object.keys(before), ...Object.keys(now)])) {
      const found = firstDifference(before[key], now[key], `${path}.${key}`);
      if (found !== undefined) return found;
    }
    return undefined;
  }
  const [one, other] = [text(before), text(now)];
  return one === other ? undefined : `${path}: ${one} before, ${other} now`;
}

const isBranch = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null;

const text = (value: unknown): string => {
  const json = value === undefined ? 'absent' : JSON.stringify(value);
  return json.length > 200 ? `${json.slice(0, 200)}…` : json;
};

function configDigest(config: SweepConfig): string {
  return digestOf(JSON.stringify(sorted(config)));
}

/** Order of keys is no difference. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map((item) => sorted(item));
  if (!isBranch(value)) return value;
  return Object.fromEntries(
    Object.entries(value)
      .toSorted(([one], [other]) => (one < other ? -1 : 1))
      .map(([key, item]) => [key, sorted(item)]),
  );
}

const stamp = (): string => new Date().toISOString().slice(0, 19).replaceAll(/[-:]/g, '').replace('T', '-');
