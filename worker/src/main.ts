#!/usr/bin/env node
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { FleetError, reasonOf } from '@hermes-fleet/shared';
import { Command } from 'commander';

/** sysexits.h */
const EXIT = { ok: 0, usage: 64, unavailable: 69, bug: 70, config: 78 } as const;

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

async function start(): Promise<void> {
  const [{ loadConfig }, { createLog }, { startWorker }, { createProviders }] = await Promise.all([
    import('./config.ts'),
    import('./log.ts'),
    import('./start.ts'),
    import('./providers.ts'),
  ]);
  const config = loadConfig(process.env);
  const log = createLog({
    level: config.FLEET_LOG_LEVEL,
    version,
    workerId: `${hostname()}-${process.pid}-${randomBytes(3).toString('hex')}`,
  });
  const worker = await startWorker(config, createProviders(config, log), log);
  let signals = 0;
  const onSignal = (signal: NodeJS.Signals): void => {
    signals++;
    log.info({ signal, count: signals }, 'signal received');
    if (signals > 1) {
      worker.stopNow();
      return;
    }
    worker.stop().then(
      () => process.exit(EXIT.ok),
      (error: unknown) => {
        log.error({ err: error }, 'stopping failed');
        process.exit(EXIT.bug);
      },
    );
  };
  process.on('SIGTERM', onSignal);
  process.on('SIGINT', onSignal);
  // A promise that nobody waited for is a fault to mend, and no reason to drop every running agent.
  process.on('unhandledRejection', (error) => log.error({ err: error }, 'unhandled rejection'));
}

async function doctor(options: { json?: boolean }): Promise<void> {
  const { examine, printReport } = await import('./doctor.ts');
  const report = await examine(process.env);
  process.stdout.write(options.json === true ? `${JSON.stringify(report)}\n` : printReport(report));
  if (!report.ok) process.exitCode = EXIT.config;
}

function exitCodeOf(error: unknown): number {
  if (!(error instanceof FleetError)) return EXIT.bug;
  if (error.code === 'refused/config') return EXIT.config;
  return error.fault === 'infrastructure' ? EXIT.unavailable : EXIT.config;
}

const program = new Command('hermes-fleet-worker')
  .description('The daemon of hermes-fleet: runs Hermes sessions in sandboxes')
  .version(version)
  .exitOverride();
program
  .command('start')
  .description('take sessions from Redis until SIGTERM; settings are FLEET_* variables')
  .action(start);
program
  .command('doctor')
  .description('say what this machine has and lacks, and how to get it')
  .option('--json', 'for machines')
  .action(doctor);

// Asked for by the shell's completion only; every other start is spared its import.
if (process.argv[2] === 'complete') {
  const { default: tab } = await import('@bomb.sh/tab/commander');
  tab(program);
}

try {
  await program.parseAsync();
} catch (error) {
  if (error instanceof Error && 'exitCode' in error && 'code' in error && String(error.code).startsWith('commander.'))
    process.exitCode = error.exitCode === 0 ? EXIT.ok : EXIT.usage;
  else {
    console.error(error instanceof FleetError ? error.message : reasonOf(error));
    process.exit(exitCodeOf(error));
  }
}
