import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
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

/** Round trips of an idle worker with the product's own times: what it writes, counted on its way to the server. */
export async function idleRow(): Promise<Row> {
  await using redis = await disposableRedis();
  let writes = 0;
  const target = Number(new URL(redis.url).port);
  const front = createServer((client) => {
    const server = connect(target, '127.0.0.1');
    client.on('data', () => writes++);
    client.pipe(server).pipe(client);
    for (const socket of [client, server]) socket.on('error', () => socket.destroy());
  }).listen(0, '127.0.0.1');
  await once(front, 'listening');
  const { port } = front.address() as AddressInfo;
  const unset = Object.fromEntries(Object.keys(QUICK).map((name) => [name, undefined])) as unknown as Record<
    string,
    string
  >;
  await using fleet = await startFleet({ redisUrl: redis.url, workers: 0, env: unset });
  await fleet.addWorker({ FLEET_REDIS_URL: `redis://127.0.0.1:${port}` });
  await pause(5_000);
  const before = writes;
  await pause(IDLE_MS);
  const perSecond = (writes - before) / (IDLE_MS / 1000);
  front.close();
  return limitRow({ what: 'idle worker: Redis round trips', samples: [perSecond], unit: '/s', figure: perSecond }, 1.2);
}
