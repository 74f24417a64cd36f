import { spawnSync } from 'node:child_process';
import { checkRedis, FleetError, reasonOf } from '@hermes-fleet/shared';
import { type Config, loadConfig } from './config.ts';
import { createLog } from './log.ts';
import { createProviders } from './providers.ts';
import type { SandboxProvider } from './sandbox/provider.ts';

export interface Finding {
  readonly what: string;
  readonly ok: boolean;
  /** What was found, or what is wrong. */
  readonly detail: string;
  /** How to mend it; null when nothing is to be mended. */
  readonly fix: string | null;
}

export interface Report {
  readonly ok: boolean;
  readonly findings: readonly Finding[];
}

const REDIS_MS = 5_000;
const RUNNER_MS = 60_000;
const OLDEST_NODE = [20, 19] as const;

/** Looks at everything that a worker needs on this machine. Changes nothing. */
export async function examine(env: NodeJS.ProcessEnv): Promise<Report> {
  const findings: Finding[] = [nodeFinding()];
  let config: Config | undefined;
  try {
    config = loadConfig(env);
    findings.push({
      what: 'settings',
      ok: true,
      detail: `fleet ${config.FLEET_ID}, providers ${config.FLEET_PROVIDERS.join(', ')}, ${config.credentials.size} credentials`,
      fix: null,
    });
  } catch (error) {
    findings.push({
      what: 'settings',
      ok: false,
      detail: reasonOf(error),
      fix: 'set the FLEET_* variables named here; README has the table',
    });
  }
  if (config !== undefined) {
    findings.push(await redisFinding(config));
    const log = createLog({ level: 'error', version: '0', workerId: 'doctor' });
    for (const provider of createProviders(config, log)) {
      findings.push(...(await providerFindings(provider)));
      await provider.close();
    }
  }
  return { ok: findings.every(({ ok }) => ok), findings };
}

function nodeFinding(): Finding {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const ok = major > OLDEST_NODE[0] || (major === OLDEST_NODE[0] && minor >= OLDEST_NODE[1]);
  return {
    what: 'Node',
    ok,
    detail: process.versions.node,
    fix: ok ? null : `install Node ${OLDEST_NODE.join('.')} or newer`,
  };
}

async function redisFinding(config: Config): Promise<Finding> {
  try {
    const facts = await checkRedis(config.FLEET_REDIS_URL, {
      deadlineMs: REDIS_MS,
      allowEviction: config.FLEET_ALLOW_EVICTION,
    });
    return {
      what: 'Redis',
      ok: true,
      detail: `${facts.version}, maxmemory-policy ${facts.policy ?? 'not told'}`,
      fix: null,
    };
  } catch (error) {
    const fix =
      error instanceof FleetError && error.code === 'refused/redis'
        ? 'start Redis there, or set FLEET_REDIS_URL to one that runs'
        : 'mend what the message names on the Redis server';
    return { what: 'Redis', ok: false, detail: reasonOf(error), fix };
  }
}

/** The engine, and whether the pinned Hermes starts on it. */
async function providerFindings(provider: SandboxProvider): Promise<Finding[]> {
  const name = `provider ${provider.kind}`;
  if (!(await provider.ping())) {
    const fix =
      provider.kind === 'docker'
        ? `${dockerHint()}, or set FLEET_PROVIDERS=local for trusted work without isolation`
        : 'see the worker’s log';
    return [{ what: name, ok: false, detail: 'the engine does not answer', fix }];
  }
  const engine: Finding = {
    what: name,
    ok: true,
    detail: `engine ${(await provider.engineId()).slice(0, 12)}${provider.isolates ? '' : ', no isolation: trusted work only'}`,
    fix: null,
  };
  return [engine, await runnerFinding(provider)];
}

async function runnerFinding(provider: SandboxProvider): Promise<Finding> {
  const what = `Hermes on ${provider.kind}`;
  const { RunnerChannel } = await import('./channel/channel.ts');
  try {
    const runner = await RunnerChannel.start(provider, { signal: AbortSignal.timeout(RUNNER_MS), readyMs: RUNNER_MS });
    await runner.close();
    return {
      what,
      ok: true,
      detail: `hermes-agent ${runner.facts.hermes}, ready in ${(runner.facts.startedInMs / 1000).toFixed(1)} s`,
      fix: null,
    };
  } catch (error) {
    return {
      what,
      ok: false,
      detail: reasonOf(error),
      fix:
        provider.kind === 'docker'
          ? 'build the runner image: npm run setup'
          : 'make the Python environment: npm run setup',
    };
  }
}

function dockerHint(): string {
  return spawnSync('dockerd', ['--version']).status === 0
    ? 'start dockerd'
    : 'install Docker (on Debian: apt-get install docker.io) and start dockerd';
}

export function printReport(report: Report): string {
  const lines = report.findings.map(
    ({ what, ok, detail, fix }) =>
      `${ok ? 'ok  ' : 'LACK'}  ${what}: ${detail}${fix === null ? '' : `\n      fix: ${fix}`}`,
  );
  return `${lines.join('\n')}\n${report.ok ? 'This machine can run a worker.' : 'This machine cannot run a worker yet.'}\n`;
}
