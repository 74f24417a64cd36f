import type { CloseBody, Collect } from '@hermes-fleet/shared';
import { reasonOf } from '@hermes-fleet/shared';
import type { FetchedFile, Sandbox } from '../sandbox/provider.ts';

type Collected = NonNullable<CloseBody['collected']>;

const COMMAND_MS = 30_000;

/** Takes the command outputs and files that the seed named, within one budget of bytes. */
export async function collect(
  sandbox: Sandbox,
  wanted: Collect,
  options: { readonly user: string | undefined; readonly signal: AbortSignal },
): Promise<Collected> {
  let left = wanted.max_bytes;
  const commands: Collected['commands'] = {};
  for (const { name, argv } of wanted.commands) {
    const output = await runOne(sandbox, argv, left, options);
    left -= Buffer.byteLength(output.stdout) + Buffer.byteLength(output.stderr);
    commands[name] = output;
  }
  const files =
    wanted.files.length === 0
      ? []
      : await sandbox.getFiles(wanted.files, {
          signal: options.signal,
          deadlineMs: COMMAND_MS,
          maxBytes: Math.max(0, left),
        });
  return { commands, files: files.map(fileOf) };
}

async function runOne(
  sandbox: Sandbox,
  argv: readonly string[],
  maxBytes: number,
  options: { readonly user: string | undefined; readonly signal: AbortSignal },
): Promise<Collected['commands'][string]> {
  try {
    const result = await sandbox.exec({
      argv,
      user: options.user,
      workdir: sandbox.workdir,
      signal: options.signal,
      maxBytes: Math.max(0, maxBytes),
      deadlineMs: COMMAND_MS,
    });
    return {
      exit_code: result.exitCode,
      stdout: result.stdout.toString(),
      stderr: result.stderr.toString(),
      truncated: result.stdoutBytes > result.stdout.length || result.stderrBytes > result.stderr.length,
      error: null,
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
