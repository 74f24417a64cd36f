#!/usr/bin/env node
import { readFile } from 'node:fs/promises';
import { Command, CommanderError } from 'commander';
import type { FleetClient } from './client.ts';
import { cancelCommand } from './commands/cancel.ts';
import { commandOf, type CommandSpec, type Invocation } from './commands/command.ts';
import { resultsCommand } from './commands/results.ts';
import { runCommand } from './commands/run.ts';
import { statusCommand } from './commands/status.ts';
import { EXIT, exitStatusOf, isFleetError } from './exit-status.ts';

const COMMANDS: readonly CommandSpec[] = [runCommand, statusCommand, cancelCommand, resultsCommand];
const MIB = 1024 * 1024;
const GIVE_BACK_MS = 500;
const TROUBLE_MS = 10_000;

const interrupted = new AbortController();
const isJson = process.argv.includes('--json');

function report(code: string, message: string): void {
  const line = message.replaceAll(/\s*\n\s*/g, ' ');
  process.stderr.write(isJson ? `${JSON.stringify({ error: { code, message: line } })}\n` : `hermes-fleet: ${line}\n`);
}

/** The settings of a client; those of a worker, in the same environment, are none of our business. */
async function settings(values: Readonly<Record<string, unknown>>) {
  const { CommonEnvironment, readEnvironment } = await import('@hermes-fleet/shared');
  const given = {
    ...process.env,
    ...(typeof values['redis'] === 'string' ? { FLEET_REDIS_URL: values['redis'] } : {}),
    ...(typeof values['fleet'] === 'string' ? { FLEET_ID: values['fleet'] } : {}),
  };
  const ours = Object.entries(given).filter(([name]) => name in CommonEnvironment.shape);
  return readEnvironment(CommonEnvironment.partial({ FLEET_REDIS_URL: true }), Object.fromEntries(ours));
}

async function connect(values: Readonly<Record<string, unknown>>): Promise<FleetClient> {
  const { FleetError } = await import('@hermes-fleet/shared');
  const { FleetClient } = await import('./client.ts');
  const ours = await settings(values);
  if (ours.FLEET_REDIS_URL === undefined)
    throw new FleetError('refused/config', 'no Redis is named: set FLEET_REDIS_URL, or give --redis');
  let saidAt = Number.NEGATIVE_INFINITY;
  return await FleetClient.connect({
    redisUrl: ours.FLEET_REDIS_URL,
    fleetId: ours.FLEET_ID,
    allowEviction: ours.FLEET_ALLOW_EVICTION,
    maxBodyBytes: ours.FLEET_MAX_BODY_MIB * MIB,
    onConnectionError: (error) => {
      if (performance.now() - saidAt < TROUBLE_MS) return;
      saidAt = performance.now();
      report('refused/redis', `Redis connection trouble (${error.message})`);
    },
  });
}

/** The first one asks the command to end, in good order; the second one leaves. */
function onInterrupt(): void {
  if (interrupted.signal.aborted) process.exit(EXIT.interrupted);
  interrupted.abort();
}

function addCommand(program: Command, spec: CommandSpec): void {
  const command = commandOf(spec).copyInheritedSettings(program);
  command.action(async () => {
    const values = command.opts<Record<string, unknown>>();
    const invocation: Invocation = {
      args: command.args,
      isJson,
      connect: async () => await connect(values),
      maxBodyBytes: async () => (await settings(values)).FLEET_MAX_BODY_MIB * MIB,
      stdout: process.stdout,
      stderr: process.stderr,
      report,
      signal: interrupted.signal,
    };
    if (spec.endsBySignal === true) for (const name of ['SIGINT', 'SIGTERM'] as const) process.on(name, onInterrupt);
    process.exitCode = await spec.run(invocation, values);
  });
  program.addCommand(command);
}

async function main(): Promise<void> {
  const { version } = JSON.parse(await readFile(new URL('../package.json', import.meta.url), 'utf8')) as {
    version: string;
  };
  const program = new Command('hermes-fleet')
    .description('Runs Hermes agent rollouts on a fleet of sandboxes, through Redis')
    .version(version)
    .exitOverride()
    .configureOutput({ outputError: () => undefined });
  for (const spec of COMMANDS) addCommand(program, spec);
  if (process.argv[2] === 'complete') {
    const { default: tab } = await import('@bomb.sh/tab/commander');
    tab(program);
  } else program.command('complete').argument('[shell]', 'bash, zsh or fish').description('print shell completions');
  await program.parseAsync();
}

/** A reader that has seen enough, as `head` does, is no error; what it was not shown is given back first. */
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') process.exit(EXIT.bug);
  interrupted.abort();
  setTimeout(() => process.exit(EXIT.done), GIVE_BACK_MS);
});

try {
  await main();
} catch (error) {
  if (error instanceof CommanderError) {
    const isHelp = error.code === 'commander.helpDisplayed' || error.code === 'commander.version';
    process.exitCode = isHelp ? EXIT.done : EXIT.usage;
    if (!isHelp && error.code !== 'commander.help') report('refused/invalid', error.message.replace(/^error: /, ''));
  } else if (error instanceof Error && 'code' in error && error.code === 'EPIPE') {
    process.exitCode = EXIT.done;
  } else {
    process.exitCode = exitStatusOf(error);
    report(isFleetError(error) ? error.code : 'infra/internal', error instanceof Error ? error.message : String(error));
  }
}
