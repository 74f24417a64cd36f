import type { CloseBody, Collect } from '@hermes-fleet/shared';
import { reasonOf } from '@hermes-fleet/shared';
import type { FetchedFile, Sandbox } from '../sandbox/provider.ts';

type Collected = NonNullable<CloseBody['collected']>;

const KILLED = 137;
/** Most that one command may take, and the files together. */
const LONGEST_MS = 30_000;
/** Of the time that a close has, what is left to collecting: the sandbox has still to go. */
const SHARE = 0.7;

export interface Collecting {
  readonly user: string | undefined;
  readonly signal: AbortSignal;
  /** Time limit of the close. */
  readonly closeMs: number;
}

/**
 * Takes the command outputs and files that the seed named, within one budget of bytes. Time is shared out: one that hangs
 * takes nothing away from the others.
 */
export async function collect(sandbox: Sandbox, wanted: Collect, collecting: Collecting): Promise<Collected> {
  const endAt = performance.now() + SHARE * collecting.closeMs;
  let shares = wanted.commands.length + (wanted.files.length === 0 ? 0 : 1);
  const share = (): number => Math.min(LONGEST_MS, Math.max(1, (endAt - performance.now()) / shares--));
  let left = wanted.max_bytes;
  const commands: [string, Collected['commands'][string]][] = [];
  for (const { name, argv } of wanted.commands) {
    const output = await runOne(sandbox, argv, left, { ...collecting, deadlineMs: share() });
    left -= Buffer.byteLength(output.stdout) + Buffer.byteLength(output.stderr);
    commands.push([name, output]);
  }
  const files =
    wanted.files.length === 0 ? [] : await filesOf(sandbox, wanted.files, left, { ...collecting, deadlineMs: share() });
  return { commands: Object.fromEntries(commands), files };
}

async function filesOf(
  sandbox: Sandbox,
  paths: readonly string[],
  maxBytes: number,
  { signal, deadlineMs }: Collecting & { readonly deadlineMs: number },
): Promise<Collected['files']> {
  try {
    const files = await sandbox.getFiles(paths, { signal, deadlineMs, maxBytes: Math.max(0, maxBytes) });
    return files.map(fileOf);
  } catch (error) {
    return paths.map((path) => ({ path, size: 0, text: null, base64: null, truncated: false, error: reasonOf(error) }));
  }
}

async function runOne(
  sandbox: Sandbox,
  argv: readonly string[],
  maxBytes: number,
  { user, signal, deadlineMs }: Collecting & { readonly deadlineMs: number },
): Promise<Collected['commands'][string]> {
  const begun = performance.now();
  try {
    const result = await sandbox.exec({
      argv,
      user,
      workdir: sandbox.workdir,
      signal,
      maxBytes: Math.max(0, maxBytes),
      deadlineMs,
    });
    const isLate = result.exitCode === KILLED && performance.now() - begun >= deadlineMs;
    return {
      exit_code: result.exitCode,
      stdout: result.stdout.toString(),
      stderr: result.stderr.toString(),
      truncated: result.stdoutBytes > result.stdout.length || result.stderrBytes > result.stderr.length,
      error: isLate ? `killed after ${Math.round(deadlineMs)} ms, its share of the close's time` : null,
    };
  } catch (error) {
    return { exit_code: null, stdout: '', stderr: '', truncated: false, error: reasonOf(error) };
  }
}

/** Text where the bytes are text, else base64. */
function fileOf(file: FetchedFile): Collected['files'][number] {
  const { path, content, size, problem } = file;
  if (content === undefined)
    return { path, size, text: null, base64: null, truncated: false, error: problem ?? 'missing' };
  const text = content.toString();
  const isText = Buffer.from(text).equals(content);
  return {
    path,
    size,
    text: isText ? text : null,
    base64: isText ? null : content.toString('base64'),
    truncated: content.length < size,
    error: null,
  };
}
