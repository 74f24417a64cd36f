import { readdirSync, readFileSync } from 'node:fs';
import { connectRedis } from '@hermes-fleet/shared';
import { QUICK, startFleet } from '../setup/fleet.ts';
import { callTool, say, turns } from '../setup/model-replies.ts';
import { disposableRedis } from './dispatch.ts';
import { limitRow, quantile, type Row, timed } from './report.ts';

const CANCELS = 20;
const KILLS = 4;
const IDLE_MS = 30_000;

const pause = async (ms: number): Promise<void> => await new Promise((resolve) => setTimeout(resolve, ms));

/** Processes of this machine whose environment or command line holds a mark. */
function alive(mark: string): number {
  return readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && has(`/proc/${pid}/cmdline`, mark)).length;
}

function has(file: string, mark: string): boolean {
  try {
    return readFileSync(file, 'utf8').includes(mark);
  } catch {
    return false;
  }
}

async function until(holds: () => boolean | Promise<boolean>, deadlineMs: number): Promise<void> {
  const end = performance.now() + deadlineMs;
  while (!(await holds())) {
    if (performance.now() > end) throw new Error('it did not happen in time');
    await pause(10);
  }
}

/** From an accepted cancel to nothing of the command alive: a shell with a `setsid` grandchild. */
export async function cancelRow(): Promise<Row> {
  await using redis = await disposableRedis();
  await using fleet = await startFleet({ redisUrl: redis.url });
  const samples: number[] = [];
  for (let n = 0; n < CANCELS; n++) {
    const mark = `7${String(process.pid).padStart(7, '0')}${n}`;
    fleet.model.script(
      `sleeper${n}`,
      turns([callTool('terminal', { command: `setsid sleep ${mark} & sleep ${mark}` }), say('done')]),
    );
    const id = `cancel/${n}`;
    await fleet.client.submit({
      seed: fleet.seed(id, `sleeper${n}`),
      activations: [{ session_id: id, activation_id: 'a', request: { input: 'go' } }],
    });
    await until(() => alive(mark) >= 2, 30_000);
    await fleet.client.cancel({ sessionId: id, commandId: 'a' });
    samples.push(await timed(async () => await until(() => alive(mark) === 0, 30_000)));
    await fleet.client.close({ session_id: id });
  }
  return limitRow(
    { what: 'cancel accepted → nothing of it alive (p95)', samples, unit: 'ms', figure: quantile(samples, 0.95) },
    1000,
  );
}

/** From SIGKILL of a worker to the begin of its command elsewhere, with short times. */
export async function takeoverRow(): Promise<Row> {
  await using redis = await disposableRedis();
  await using fleet = await startFleet({ redisUrl: redis.url, workers: 1 });
  const samples: number[] = [];
  for (let n = 0; n < KILLS; n++) {
    let calls = 0;
    const release: (() => void)[] = [];
    fleet.model.script('held', async () => {
      calls++;
      await new Promise<void>((resolve) => release.push(resolve));
      return say('done');
    });
    const id = `takeover/${n}`;
    await fleet.client.submit({
      seed: fleet.seed(id, 'held'),
      activations: [{ session_id: id, activation_id: 'a', request: { input: 'go' } }],
    });
    await until(() => calls === 1, 30_000);
    const old = fleet.workers.at(-1);
    await fleet.addWorker();
    old?.process.kill('SIGKILL');
    samples.push(await timed(async () => await until(() => calls >= 2, 60_000)));
    for (const each of release) each();
    await fleet.client.close({ session_id: id });
  }
  const sum = ['FLEET_LOCK_MS', 'FLEET_STALLED_INTERVAL_MS', 'FLEET_TAKEOVER_GRACE_MS'].reduce(
    (total, name) => total + Number(QUICK[name]),
    0,
  );
  return limitRow(
    {
      what: 'worker SIGKILL → taken over (worst)',
      samples,
      unit: 'ms',
      figure: Math.max(...samples),
      note: `lock + stalled + grace = ${sum} ms`,
    },
    sum + 1000,
  );
}

/** Commands that an idle worker with the product's own times sends, as the server counts them. */
export async function idleRow(): Promise<Row> {
  await using redis = await disposableRedis();
  const unset = Object.fromEntries(Object.keys(QUICK).map((name) => [name, undefined])) as unknown as Record<
    string,
    string
  >;
  await using _fleet = await startFleet({ redisUrl: redis.url, env: unset });
  const admin = connectRedis(redis.url, () => undefined);
  const count = async (): Promise<number> => {
    const list = String(await admin.client('LIST'));
    return list
      .split('\n')
      .filter((line) => !line.includes('cmd=client'))
      .reduce((sum, line) => sum + Number(/tot-cmds=(\d+)/.exec(line)?.[1] ?? 0), 0);
  };
  await pause(5_000);
  const before = await count();
  await pause(IDLE_MS);
  const perSecond = ((await count()) - before) / (IDLE_MS / 1000);
  admin.disconnect();
  return limitRow(
    { what: 'idle worker: Redis commands sent', samples: [perSecond], unit: '/s', figure: perSecond },
    1.2,
  );
}
