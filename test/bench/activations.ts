import { RunnerChannel } from '@hermes-fleet/worker/channel/channel';
import { encodeLine, FRAME, encodeFrames, frameParser, lineParser } from '@hermes-fleet/worker/channel/frames';
import type { SandboxProvider } from '@hermes-fleet/worker/sandbox/provider';
import Docker from 'dockerode';
import { demultiplexer } from '@hermes-fleet/worker/sandbox/docker-streams';
import { ratioRow, type Row, timed } from './report.ts';
import { benchProvider } from './sandboxes.ts';

const SHARED = 30;
const FRESH = 6;
const AT_ONCE = 20;
const ANSWER = Buffer.from(
  JSON.stringify({
    id: 'r1',
    object: 'chat.completion',
    created: 1,
    model: 'm',
    choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'done' } }],
    usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  }),
);
const JOB = {
  model: 'm',
  max_tokens: 1000,
  max_turns: 5,
  context_length: 131_072,
  compaction: false,
  delegation_max_turns: 5,
  toolsets: ['terminal', 'file'],
  disabled_tools: [],
  system: null,
  temp_dir: '/tmp',
  cwd: '/workspace',
  shell: 'bash',
  tool_timeout_s: 60,
  probe: '  OS: Linux\n  User: root\n  Home: /root\n  Working directory: /workspace',
  session: 'bench',
  pin: { now: '2026-01-01T12:00:00+00:00', seed: 'bench' },
  request_overrides: null,
  mcp: {},
  resident_shell: true,
};
const RUNNER_PYTHON = ['/opt/hermes/lib/ld.so', '--library-path', '/opt/hermes/lib', '/opt/hermes/bin/python3'];
const BODY = Buffer.from(JSON.stringify({ user: 'say done', history: [] }));

/** One activation without tools, its only model call answered at once. */
async function activation(runner: RunnerChannel, home: string): Promise<void> {
  const channel = runner.open(home, ({ head }) => {
    if (head['op'] === 'model')
      channel.send({ id: head['id'], status: 200, headers: { 'content-type': 'application/json' } }, ANSWER);
  });
  channel.send(JOB, BODY);
  const { rc, detail } = await channel.exited;
  if (rc !== 0) throw new Error(`the activation ended with ${rc}: ${detail}`);
}

/** The same in a fresh process in a container that is there: imports, one activation, end. */
async function freshProcess(container: Docker.Container): Promise<void> {
  const exec = await container.exec({
    // As the image's entry point.
    Cmd: [...RUNNER_PYTHON, '-u', '/opt/hermes/runner/host.py'],
    AttachStdin: true,
    AttachStdout: true,
    AttachStderr: true,
    Env: ['PYTHONHASHSEED=0', `HF_ROOT=/tmp/a/f${Math.random().toString(36).slice(2)}`],
  });
  const connection = await exec.start({ hijack: true, stdin: true });
  await new Promise<void>((resolve, reject) => {
    const lines = lineParser(({ head }) => {
      if (head['op'] === 'model')
        connection.write(
          encodeFrames(
            1,
            FRAME.data,
            encodeLine({ id: head['id'], status: 200, headers: { 'content-type': 'application/json' } }, ANSWER),
          ),
        );
    });
    const frames = frameParser((_, kind, payload) => {
      if (kind === FRAME.ready)
        connection.write(
          Buffer.concat([
            encodeFrames(1, FRAME.open, Buffer.from('fresh')),
            encodeFrames(1, FRAME.data, encodeLine(JOB, BODY)),
          ]),
        );
      else if (kind === FRAME.data) lines(payload);
      else if (kind === FRAME.exit) {
        const { rc } = JSON.parse(payload.toString()) as { rc: number };
        if (rc === 0) resolve();
        else reject(new Error(`the fresh activation ended: ${payload.toString()}`));
      }
    });
    const take = demultiplexer((chunk, stream) => {
      if (stream === 'stdout') frames(chunk);
    });
    connection.on('data', (chunk: Buffer) => take.push(chunk));
    connection.once('close', () => reject(new Error('the fresh process ended early')));
  });
  connection.destroy();
}

async function cpuSeconds(docker: Docker, filter: (name: string) => boolean): Promise<number> {
  let sum = 0;
  for (const { Id: id, Names: names, Labels: labels } of await docker.listContainers()) {
    if (!filter(labels['hermes-fleet.fleet'] ?? names[0] ?? '')) continue;
    const stats = await docker.getContainer(id).stats({ stream: false });
    sum += stats.cpu_stats.cpu_usage.total_usage / 1e9;
  }
  return sum;
}

/** Forked activations of the runner host against a fresh process each: time, CPU, and 20 at a time. */
export async function activationRows(): Promise<Row[]> {
  const docker = new Docker();
  const provider: SandboxProvider = benchProvider('bench-runner');
  const runner = await RunnerChannel.start(provider, { signal: new AbortController().signal, readyMs: 60_000 });
  const container = await docker.createContainer({
    Image: 'hermes-fleet-runner',
    Entrypoint: ['sleep'],
    Cmd: ['3600'],
    Labels: { 'hermes-fleet.fleet': 'bench-fresh' },
    HostConfig: { NetworkMode: 'none', Init: true, AutoRemove: true },
  });
  await container.start();
  let n = 0;
  const shared = async (): Promise<void> => await activation(runner, `b${n++}`);
  try {
    await shared();
    await freshProcess(container);
    const [ours, fresh]: number[][] = [[], []];
    const cpu = {
      ours: await cpuSeconds(docker, (name) => name === 'bench-runner'),
      fresh: await cpuSeconds(docker, (name) => name === 'bench-fresh'),
    };
    for (let round = 0; round < FRESH; round++) {
      for (let k = 0; k < SHARED / FRESH; k++) ours?.push(await timed(shared));
      fresh?.push(await timed(async () => await freshProcess(container)));
    }
    const oursCpu = ((await cpuSeconds(docker, (name) => name === 'bench-runner')) - cpu.ours) / SHARED;
    const freshCpu = ((await cpuSeconds(docker, (name) => name === 'bench-fresh')) - cpu.fresh) / FRESH;
    const many = async (work: () => Promise<void>): Promise<number> =>
      (AT_ONCE * 1000) / (await timed(async () => await Promise.all(Array.from({ length: AT_ONCE }, work))));
    const oursMany = [await many(shared), await many(shared)];
    const freshMany = [await many(async () => await freshProcess(container))];
    return [
      ratioRow(
        {
          what: 'activation without tools, instant model, apart: time',
          baseline: 'a fresh runner process',
          samples: ours ?? [],
          baselineSamples: fresh ?? [],
          unit: 'ms',
        },
        1 / 15,
      ),
      ratioRow(
        {
          what: 'the same: CPU',
          baseline: 'a fresh runner process',
          samples: [oursCpu],
          baselineSamples: [freshCpu],
          unit: 's',
        },
        1 / 12,
      ),
      ratioRow(
        {
          what: 'the same, 20 at a time: throughput',
          baseline: 'a fresh runner process',
          samples: oursMany,
          baselineSamples: freshMany,
          unit: '/s',
        },
        15,
        true,
      ),
    ];
  } finally {
    await runner.close();
    await container.remove({ force: true });
  }
}
