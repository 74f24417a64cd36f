import { createHash, type Hash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { FleetError, issuesOf, parseActivate, parseSeed, reasonOf, type ResponsesRequest } from '@hermes-fleet/shared';
import { readLines } from './json-lines.ts';
import { membersOf } from './json-members.ts';
import { type MergedRow, mergeRow, SweepConfig } from './sweep-config.ts';

/** One row of the tasks file. */
export interface TaskRow {
  /** Place among the rows that are not blank, from 0; refused rows keep theirs. */
  readonly index: number;
  /** Line in the file, from 1. */
  readonly line: number;
  /** The row as it was written. */
  readonly text: string;
  readonly digest: string;
}

export interface Tasks {
  readonly rows: readonly TaskRow[];
  /** `file:line: what is wrong`, one per refused row. */
  readonly errors: readonly string[];
  /** Of the bytes of the file. */
  readonly digest: string;
}

export interface RowPlan {
  readonly seed: MergedRow['seed'];
  readonly request: ResponsesRequest;
  readonly taskId: string;
}

export interface ReadTasksOptions {
  readonly config: SweepConfig;
  /** Rows to take from the front. */
  readonly limit?: number | undefined;
  readonly maxBodyBytes: number;
}

/**
 * Reads and checks a tasks file, and goes on behind a row that is refused, so that all of them are named at once.
 *
 * @throws FleetError `refused/invalid` when the file cannot be read at all
 */
export async function readTasks(file: string, options: ReadTasksOptions): Promise<Tasks> {
  const digest = createHash('sha256');
  const rows: TaskRow[] = [];
  const errors: string[] = [];
  let index = 0;
  for await (const line of readLines(hashed(file, digest))) {
    if ('text' in line && line.text.trim() === '') continue;
    const at = index++;
    // The whole file is read nevertheless: its digest says whether it is the same one.
    if (at >= (options.limit ?? Number.POSITIVE_INFINITY)) continue;
    try {
      if ('error' in line) throw new FleetError('refused/invalid', line.error);
      const row = { index: at, line: line.number, text: line.text.trim(), digest: digestOf(line.text.trim()) };
      checkSize(planOf(row, options.config), options.maxBodyBytes);
      rows.push(row);
    } catch (error) {
      // What is nested deeper than the stack is a bad row, and no end of the others.
      if (!(error instanceof FleetError || error instanceof RangeError)) throw error;
      const reason = error instanceof RangeError ? 'it is nested too deeply' : error.message;
      errors.push(`${file}:${line.number}: ${reason}`);
    }
  }
  return { rows, errors, digest: digest.digest('hex') };
}

/** @throws FleetError `refused/invalid` or `refused/grant_unsupported`, naming the field */
export function planOf(row: TaskRow, config: SweepConfig): RowPlan {
  const fields = objectOf(row.text);
  const params = fields['responses_create_params'];
  if (params === undefined) throw new FleetError('refused/invalid', 'responses_create_params is missing');
  if (!isObject(params)) throw new FleetError('refused/invalid', 'responses_create_params is not an object');
  const session = SweepConfig.optional().safeParse(fields['session']);
  if (!session.success) throw new FleetError('refused/invalid', `session: ${issuesOf(session.error)}`);
  const { seed, request } = mergeRow(config, session.data, params);
  const parsed = parseSeed({ session_id: 'row', ...seed });
  const activate = checkRequest(request);
  if (activate.model != null && activate.model !== parsed.model.name)
    throw new FleetError(
      'refused/invalid',
      `responses_create_params.model is ${JSON.stringify(activate.model)}, and the session's is ${JSON.stringify(parsed.model.name)}`,
    );
  return { seed, request: activate, taskId: taskIdOf(row) };
}

function checkRequest(request: unknown): ResponsesRequest {
  try {
    return parseActivate({ session_id: 'row', activation_id: 'row', request }).request;
  } catch (error) {
    if (!(error instanceof FleetError)) throw error;
    const message = error.message
      .replace(/^activate is not valid: /, '')
      .replaceAll(/(^|; )request\b/g, '$1responses_create_params');
    throw new FleetError(error.code, message, { cause: error });
  }
}

/** The client refuses it too, but then the sweep is under way. Room is left for ids. */
function checkSize(plan: RowPlan, maxBytes: number): void {
  for (const [name, body] of [
    ['seed', plan.seed],
    ['request', plan.request],
  ] as const) {
    const size = Buffer.byteLength(JSON.stringify(body)) + 8192;
    if (size > maxBytes)
      throw new FleetError('refused/too_large', `the ${name} is ${size} bytes; ${maxBytes} are allowed`);
  }
}

function objectOf(text: string): Record<string, unknown> {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new FleetError('refused/invalid', `is not JSON (${reasonOf(error)})`, { cause: error });
  }
  if (!isObject(json)) throw new FleetError('refused/invalid', 'is not a JSON object');
  return json;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const ID_LENGTH = 512;

/** Gym's names for it; a number keeps its digits. */
function taskIdOf(row: TaskRow): string {
  const members = new Map(membersOf(row.text).map(({ key, value }) => [key, value]));
  for (const name of ['task_id', 'problem_id', 'instance_id']) {
    const value = members.get(name);
    if (value === undefined || !/^["\d-]/.test(value) || value === '""') continue;
    const text = value.startsWith('"') ? (JSON.parse(value) as string) : value;
    // A pair that the cut halves becomes U+FFFD.
    return Buffer.from(text.slice(0, ID_LENGTH)).toString();
  }
  return String(row.index);
}

export const digestOf = (text: string): string => createHash('sha256').update(text).digest('base64url').slice(0, 22);

async function* hashed(file: string, digest: Hash): AsyncGenerator<Uint8Array> {
  try {
    for await (const chunk of createReadStream(file) as AsyncIterable<Buffer>) {
      digest.update(chunk);
      yield chunk;
    }
  } catch (error) {
    throw new FleetError('refused/invalid', `${file}: cannot be read (${reasonOf(error)})`, { cause: error });
  }
}
