import type { Writable } from 'node:stream';
import type { WriteStream } from 'node:tty';
import { Command, InvalidArgumentError } from 'commander';
import type { FleetClient } from '../client.ts';

/** One call of the command line. */
export interface Invocation {
  readonly args: readonly (string | undefined)[];
  readonly isJson: boolean;
  /** Makes a client from the settings; the first use of Redis. */
  readonly connect: () => Promise<FleetClient>;
  readonly maxBodyBytes: () => Promise<number>;
  readonly stdout: Writable;
  readonly stderr: WriteStream;
  /** Shows an error that does not end the command, in the form of those that do. */
  readonly report: (code: string, message: string) => void;
  /** Aborted by the first Ctrl-C. */
  readonly signal: AbortSignal;
}

/** A command: what it is called, what it takes, and what it does. Its module is light; `run` imports what it needs. */
export interface CommandSpec {
  readonly name: string;
  readonly summary: string;
  /** Arguments and options. */
  readonly declare: (command: Command) => Command;
  /** Whether Ctrl-C only aborts the signal, and the command ends by itself. */
  readonly endsBySignal?: true;
  /** @returns the exit status */
  readonly run: (invocation: Invocation, values: Readonly<Record<string, unknown>>) => Promise<number>;
}

/** The command as the parser knows it, with the options that all commands have. */
export function commandOf(spec: CommandSpec): Command {
  return spec
    .declare(new Command(spec.name).description(spec.summary))
    .option('--redis <url>', 'Redis of the fleet (default: FLEET_REDIS_URL)')
    .option('--fleet <id>', 'name of the fleet (default: FLEET_ID, or hf)')
    .option('--json', 'results and errors for programs');
}

/** Parser of an option that is a whole number. */
export function wholeNumber(min: number, max: number): (text: string) => number {
  return (text) => {
    const number = Number(text);
    if (!/^\d+$/.test(text) || number < min || number > max)
      throw new InvalidArgumentError(`It must be a whole number from ${min} to ${max}.`);
    return number;
  };
}

/** Resolves when the text is out of our hands. */
export async function print(stream: Writable, text: string): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    stream.write(`${text}\n`, (error) => (error == null ? resolve() : reject(error)));
  });
}
