import { readFile } from 'node:fs/promises';
import { FleetError } from '@hermes-fleet/shared';
import { type Recorded, type RolloutFiles, readRecorded, rolloutFiles, sizeOf } from './rollout-files.ts';
import { readSweepConfig } from './sweep-config.ts';
import { lockSweep } from './sweep-lock.ts';
import { differenceOf, type Manifest, newManifest, readManifest } from './sweep-manifest.ts';
import { readTasks, type Tasks } from './sweep-tasks.ts';

export interface PreparationInput {
  readonly args: readonly (string | undefined)[];
  readonly maxBodyBytes: () => Promise<number>;
  readonly report: (code: string, message: string) => void;
}

export interface PreparationValues {
  readonly output: string;
  readonly repeats: number;
  readonly config?: string;
  readonly resume?: true;
  readonly skipInvalid?: true;
  readonly sweepId?: string;
  readonly limit?: number;
  readonly observations?: true;
}

/** All that a sweep needs but the fleet. Holds the lock of its files. */
export interface PreparedSweep extends AsyncDisposable {
  readonly tasks: Tasks;
  readonly files: RolloutFiles;
  readonly recorded: Recorded;
  /** Undefined when there is nothing to run. */
  readonly manifest: Manifest | undefined;
}

const MOST_ERRORS = 20;

/**
 * Reads and checks everything before anything is handed in.
 *
 * @throws FleetError `refused/invalid` for what is wrong with the files or does not fit what was begun
 */
export async function prepareSweep(input: PreparationInput, values: PreparationValues): Promise<PreparedSweep> {
  const tasksFile = input.args[0] ?? '';
  const config = values.config === undefined ? {} : await readSweepConfig(values.config);
  const tasks = await readTasks(tasksFile, { config, limit: values.limit, maxBodyBytes: await input.maxBodyBytes() });
  listErrors(tasks, input.report);
  if (tasks.errors.length > 0 && values.skipInvalid !== true)
    throw new FleetError(
      'refused/invalid',
      `${tasks.errors.length} of ${tasks.errors.length + tasks.rows.length} tasks are not valid, and nothing was handed in (--skip-invalid runs the others)`,
    );
  const files = rolloutFiles(values.output);
  const nothing: Recorded = { done: new Map(), nextAttempt: new Map() };
  if (tasks.rows.length === 0)
    return { tasks, files, recorded: nothing, manifest: undefined, [Symbol.asyncDispose]: () => Promise.resolve() };
  const lock = await lockSweep(values.output);
  try {
    const fresh = newManifest({
      fleetVersion: await fleetVersion(),
      sweepId: values.sweepId,
      config,
      tasksFile,
      tasks,
      options: {
        repeats: values.repeats,
        limit: values.limit ?? null,
        skip_invalid: values.skipInvalid === true,
        observations: values.observations === true,
      },
    });
    const manifest = values.resume === true ? await resumed(files, fresh, values.sweepId) : await begun(files, fresh);
    const recorded = values.resume === true ? await readRecorded(files) : nothing;
    return { tasks, files, recorded, manifest, [Symbol.asyncDispose]: async () => await lock[Symbol.asyncDispose]() };
  } catch (error) {
    await lock[Symbol.asyncDispose]();
    throw error;
  }
}

function listErrors({ errors }: Tasks, report: PreparationInput['report']): void {
  for (const error of errors.slice(0, MOST_ERRORS)) report('refused/invalid', error);
  if (errors.length > MOST_ERRORS)
    report('refused/invalid', `… and ${errors.length - MOST_ERRORS} more tasks that are not valid`);
}

async function begun(files: RolloutFiles, fresh: Manifest): Promise<Manifest> {
  for (const file of [files.out, files.failures])
    if ((await sizeOf(file)) > 0)
      throw new FleetError('refused/invalid', `${file} is not empty: go on with --resume, or name another output`);
  return fresh;
}

async function resumed(files: RolloutFiles, fresh: Manifest, sweepId: string | undefined): Promise<Manifest> {
  const before = await readManifest(files.manifest);
  if (before === undefined) {
    if ((await sizeOf(files.out)) + (await sizeOf(files.failures)) > 0)
      throw new FleetError(
        'refused/invalid',
        `${files.manifest} is missing: what ${files.out} belongs to is not known`,
      );
    return fresh;
  }
  const now = { ...fresh, sweep_id: sweepId ?? before.sweep_id };
  const difference = differenceOf(before, now);
  if (difference !== undefined)
    throw new FleetError('refused/invalid', `${files.out} was begun with something else: ${difference}`);
  // Its configuration too: another order of keys would make other bodies of the sessions that still run.
  const { config, run_key, round, hermes_versions, created_at } = before;
  return { ...now, config, run_key, round, hermes_versions, created_at };
}

/** Of our own package. */
export async function fleetVersion(): Promise<string> {
  const text = await readFile(new URL('../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { readonly version: string }).version;
}
