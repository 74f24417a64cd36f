import { PassThrough, Writable } from 'node:stream';
import type { WriteStream } from 'node:tty';
import { FleetClient } from '@hermes-fleet/producer';
import { commandOf, type CommandSpec, type Invocation } from '@hermes-fleet/producer/internal/commands/command';
import { exitStatusOf } from '@hermes-fleet/producer/internal/exit-status';

export interface Invoked {
  readonly status: number;
  readonly stdout: string;
  readonly stderr: string;
}

export interface InvokeOptions {
  readonly redisUrl: string;
  readonly fleetId: string;
  readonly signal?: AbortSignal;
  /** Hears each piece of stdout as it comes. */
  readonly onOutput?: (text: string) => void;
}

/** Runs a command as the command line does, in this process: parsed by its own declaration, with a client of its own. */
export async function invoke(spec: CommandSpec, args: readonly string[], options: InvokeOptions): Promise<Invoked> {
  let [stdout, stderr] = ['', ''];
  const command = commandOf(spec).exitOverride();
  command.parse(args, { from: 'user' });
  const errors = new PassThrough().on('data', (chunk) => (stderr += String(chunk)));
  const invocation: Invocation = {
    args: command.args,
    isJson: args.includes('--json'),
    connect: async () => await FleetClient.connect({ redisUrl: options.redisUrl, fleetId: options.fleetId }),
    maxBodyBytes: async () => await Promise.resolve(64 * 1024 * 1024),
    stdout: new Writable({
      write: (chunk, _, done) => {
        stdout += String(chunk);
        options.onOutput?.(String(chunk));
        done();
      },
    }),
    stderr: errors as unknown as WriteStream,
    report: (_, message) => (stderr += `${message}\n`),
    signal: options.signal ?? new AbortController().signal,
  };
  try {
    const status = await spec.run(invocation, command.opts());
    return { status, stdout, stderr };
  } catch (error) {
    return { status: exitStatusOf(error), stdout, stderr: stderr + String(error) };
  }
}
