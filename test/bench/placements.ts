import { execFileSync } from 'node:child_process';
import type { CommandResult, SeedBody, ActivationBody, CloseBody } from '@hermes-fleet/shared';
import Docker from 'dockerode';
import { startFleet } from '../setup/fleet.ts';
import { callTool, say, turns } from '../setup/model-replies.ts';
import { disposableRedis } from './dispatch.ts';
import { median, type Row, timed } from './report.ts';

const SESSIONS = 8;
const IMAGE = 'hermes-fleet-base:bookworm';
const MIB = 1024 * 1024;

interface Cost {
  readonly seedMs: number;
  readonly activationMs: number;
  readonly closeMs: number;
  /** Of the sandbox, and of the runner host where there is one. */
  readonly cpuS: number;
  /** Peak of the sandbox. */
  readonly memoryMib: number;
}

/** As the kernel counts for a container, of either version of control groups: nanoseconds or microseconds, and bytes. */
function usageOf(container: string): { readonly cpuS: number; readonly memoryMib: number } {
  const script =
    'cd /sys/fs/cgroup; cat cpuacct/cpuacct.usage memory/memory.max_usage_in_bytes 2>/dev/null || { sed -n "s/usage_usec //p" cpu.stat | sed "s/$/000/"; cat memory.peak; }';
  const [cpu = 0, memory = 0] = execFileSync('docker', ['exec', container, 'sh', '-c', script], { encoding: 'utf8' })
    .trim()
    .split('\n')
    .map(Number);
  return { cpuS: cpu / 1e9, memoryMib: memory / MIB };
}

/** What one session with one command costs, Hermes apart and inside, in turns. */
export async function placementRows(): Promise<Row[]> {
  await using redis = await disposableRedis();
  await using fleet = await startFleet({
    redisUrl: redis.url,
    program: 'worker/src/main.ts',
    provider: 'docker',
    env: { FLEET_PROVIDERS: 'docker' },
  });
  fleet.model.script('placed', turns([callTool('terminal', { command: 'echo hello' }), say('done')]));
  const docker = new Docker();
  const filters = JSON.stringify({ label: [`hermes-fleet.fleet=${fleet.id}`, 'hermes-fleet.role=runner'] });
  const runner = async (): Promise<{ readonly cpuS: number; readonly memoryMib: number }> => {
    const [found] = await docker.listContainers({ filters });
    if (found === undefined) return { cpuS: 0, memoryMib: 0 };
    const stats = await docker.getContainer(found.Id).stats({ stream: false, 'one-shot': true });
    return { cpuS: stats.cpu_stats.cpu_usage.total_usage / 1e9, memoryMib: stats.memory_stats.usage / MIB };
  };
  const session = async (id: string, placement: 'apart' | 'inside'): Promise<Cost> => {
    const before = await runner();
    const seed = { ...fleet.seed(id, 'placed'), sandbox: { image: IMAGE }, hermes: { placement } };
    let seeded: CommandResult<SeedBody> | undefined;
    let activated: CommandResult<ActivationBody> | undefined;
    let closed: CommandResult<CloseBody> | undefined;
    const seedMs = await timed(async () => (seeded = await fleet.client.seed(seed)));
    const request = { session_id: id, activation_id: 'a', request: { input: 'go' } };
    const activationMs = await timed(async () => (activated = await fleet.client.activate(request)));
    const after = await runner();
    const box = usageOf(seeded?.body?.sandbox?.id ?? '');
    const closeMs = await timed(async () => (closed = await fleet.client.close({ session_id: id })));
    for (const result of [seeded, activated, closed])
      if (result?.class !== 'ok') throw new Error(`a session of the bench ended ${result?.class}/${result?.code}`);
    return {
      seedMs,
      activationMs,
      closeMs,
      cpuS: box.cpuS + after.cpuS - before.cpuS,
      memoryMib: box.memoryMib,
    };
  };
  // The runner host, and the volume of the packed Hermes, are there for the next ones.
  for (const placement of ['apart', 'inside'] as const) await session(`first.${placement}`, placement);
  const costs: Record<'apart' | 'inside', Cost[]> = { apart: [], inside: [] };
  for (let n = 0; n < SESSIONS; n++)
    for (const placement of ['apart', 'inside'] as const)
      costs[placement].push(await session(`${placement}.${n}`, placement));
  const note = `the runner host of all sessions apart has ${Math.round((await runner()).memoryMib)} MiB`;
  const row = (what: string, unit: string, pick: (cost: Cost) => number): Row => {
    const [samples, baselineSamples] = [costs.inside.map(pick), costs.apart.map(pick)];
    const figure = median(samples) / median(baselineSamples);
    return { what, baseline: 'apart', samples, baselineSamples, unit, figure, target: '–', isMet: true };
  };
  return [
    row('seed, Hermes inside', 'ms', ({ seedMs }) => seedMs),
    row('activation with one command, inside', 'ms', ({ activationMs }) => activationMs),
    row('close, inside', 'ms', ({ closeMs }) => closeMs),
    row('CPU of a session, inside', 's', ({ cpuS }) => cpuS),
    { ...row('memory of the sandbox (peak), inside', 'MiB', ({ memoryMib }) => memoryMib), note },
  ];
}
