import { createReadStream } from 'node:fs';
import { type FileHandle, open, stat, truncate } from 'node:fs/promises';
import path from 'node:path';
import { FleetError, reasonOf, RESULT_CLASSES, type ResultClass } from '@hermes-fleet/shared';
import { z } from 'zod';
import { readLines } from './json-lines.ts';

/** `OUT.jsonl` and what stands beside it. */
export interface RolloutFiles {
  readonly out: string;
  readonly failures: string;
  readonly manifest: string;
}

export function rolloutFiles(out: string): RolloutFiles {
  const { dir, name } = path.parse(out);
  const stem = path.join(dir, name);
  return { out, failures: `${stem}_failures.jsonl`, manifest: `${stem}_manifest.json` };
}

const index = z.number().int().min(0);

/** What a line says of its rollout; the rest of the line is not looked at. */
const DoneLine = z.object({
  _ng_task_index: index,
  _ng_rollout_index: index,
  fleet: z.object({
    class: z.enum(RESULT_CLASSES),
    row_digest: z.string(),
    usage: z.object({ total: z.object({ total_tokens: z.number() }) }).optional(),
  }),
});
const FailureLine = z.object({
  _ng_task_index: index,
  _ng_rollout_index: index,
  attempt: index,
  row_digest: z.string(),
});

export interface RecordedRollout {
  readonly class: ResultClass;
  readonly rowDigest: string;
  readonly tokens: number;
}

/** What earlier processes of a sweep have written. */
export interface Recorded {
  /** By {@link rolloutKey}. */
  readonly done: ReadonlyMap<string, RecordedRollout>;
  /** First attempt that has no failure line, by {@link rolloutKey}. */
  readonly nextAttempt: ReadonlyMap<string, number>;
}

export const rolloutKey = (task: number, rollout: number): string => `${task}/${rollout}`;

/**
 * Makes both files whole, and says what is in them.
 *
 * @throws FleetError `refused/invalid`, with file and line, for a line that is no record of this sweep
 */
export async function readRecorded(files: RolloutFiles): Promise<Recorded> {
  const done = new Map<string, RecordedRollout>();
  const nextAttempt = new Map<string, number>();
  await repairTail(files.out);
  await repairTail(files.failures);
  for await (const line of records(files.out, DoneLine)) {
    const key = rolloutKey(line._ng_task_index, line._ng_rollout_index);
    const { fleet } = line;
    if (!done.has(key))
      done.set(key, { class: fleet.class, rowDigest: fleet.row_digest, tokens: fleet.usage?.total.total_tokens ?? 0 });
  }
  for await (const line of records(files.failures, FailureLine)) {
    const key = rolloutKey(line._ng_task_index, line._ng_rollout_index);
    nextAttempt.set(key, Math.max(nextAttempt.get(key) ?? 0, line.attempt + 1));
  }
  return { done, nextAttempt };
}

async function* records<T extends z.ZodType>(file: string, schema: T): AsyncGenerator<z.output<T>> {
  if ((await sizeOf(file)) === 0) return;
  for await (const line of readLines(createReadStream(file) as AsyncIterable<Buffer>, Number.MAX_SAFE_INTEGER)) {
    const parsed = 'text' in line ? schema.safeParse(jsonOf(line.text)) : undefined;
    if (parsed?.success !== true)
      throw new FleetError('refused/invalid', `${file}:${line.number}: is not a record of a sweep`);
    yield parsed.data;
  }
}

export async function sizeOf(file: string): Promise<number> {
  try {
    return (await stat(file)).size;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return 0;
    throw new FleetError('refused/invalid', `${file}: cannot be read (${reasonOf(error)})`, { cause: error });
  }
}

const LF = 0x0a;
const CHUNK_BYTES = 64 * 1024;

/**
 * Mends what a crash left at the end of a file of JSON lines: half a record is cut off, a whole one gets its line end. A
 * proper prefix of an object is never an object, so there is no third case.
 */
export async function repairTail(file: string): Promise<void> {
  const size = await sizeOf(file);
  if (size === 0) return;
  const handle = await open(file, 'r+');
  try {
    const from = await lastLineStart(handle, size);
    if (from === size) return;
    const tail = Buffer.alloc(size - from);
    await handle.read(tail, 0, tail.length, from);
    if (isWhole(tail)) await handle.write('\n', size);
    else await truncate(file, from);
    await handle.sync();
  } finally {
    await handle.close();
  }
}

async function lastLineStart(handle: FileHandle, size: number): Promise<number> {
  const chunk = Buffer.alloc(CHUNK_BYTES);
  for (let end = size; end > 0; end -= CHUNK_BYTES) {
    const start = Math.max(0, end - CHUNK_BYTES);
    const { bytesRead } = await handle.read(chunk, 0, end - start, start);
    const at = chunk.subarray(0, bytesRead).lastIndexOf(LF);
    if (at !== -1) return start + at + 1;
  }
  return 0;
}

function isWhole(tail: Buffer): boolean {
  try {
    const json: unknown = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(tail));
    return typeof json === 'object' && json !== null;
  } catch {
    return false;
  }
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const SYNC_MS = 1000;

/** Appends lines to a file, one write each and in order; they are on disk within a second, and when it is closed. */
export class LineWriter implements AsyncDisposable {
  readonly #file: string;
  readonly #handle: FileHandle;
  #last: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;
  #failure: FleetError | undefined;

  private constructor(file: string, handle: FileHandle) {
    this.#file = file;
    this.#handle = handle;
  }

  /** @throws FleetError `refused/config` when the file cannot be opened */
  static async open(file: string): Promise<LineWriter> {
    try {
      return new LineWriter(file, await open(file, 'a'));
    } catch (error) {
      throw unwritable(file, error);
    }
  }

  /** @throws FleetError `refused/config` when the disk is full or gone; every later call throws the same */
  async write(line: string): Promise<void> {
    const bytes = Buffer.from(`${line}\n`);
    await this.#next(async () => {
      await this.#handle.appendFile(bytes);
      this.#timer ??= setTimeout(() => void this.#sync().catch(() => undefined), SYNC_MS);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      // What a write has thrown already must not be thrown over it.
      if (this.#failure === undefined) await this.#sync();
      else clearTimeout(this.#timer);
    } finally {
      await this.#handle.close();
    }
  }

  async #sync(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    await this.#next(async () => await this.#handle.sync());
  }

  async #next(act: () => Promise<void>): Promise<void> {
    const done = this.#last.then(async () => {
      if (this.#failure !== undefined) throw this.#failure;
      try {
        await act();
      } catch (error) {
        this.#failure = unwritable(this.#file, error);
        throw this.#failure;
      }
    });
    this.#last = done.catch(() => undefined);
    await done;
  }
}

function unwritable(file: string, error: unknown): FleetError {
  return new FleetError('refused/config', `${file}: cannot be written (${reasonOf(error)})`, { cause: error });
}
