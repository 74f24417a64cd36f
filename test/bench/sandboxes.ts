import { randomBytes } from 'node:crypto';
import { connectRedis, Keys, Scripts, sessionKey } from '@hermes-fleet/shared';
import { Broker } from '@hermes-fleet/worker/broker/broker';
import { Cancellation } from '@hermes-fleet/worker/cancellation';
import { Journal } from '@hermes-fleet/worker/capture/journal';
import { probeSandbox } from '@hermes-fleet/worker/broker/probe';
import { dockerProvider } from '@hermes-fleet/worker/sandbox/docker';
import type { Sandbox, SandboxProvider, SandboxSpec } from '@hermes-fleet/worker/sandbox/provider';
import Docker from 'dockerode';
import { disposableRedis } from './dispatch.ts';
import { ratioRow, type Row, timed } from './report.ts';

const IMAGE = 'hermes-fleet-base:bookworm';
const SAMPLES = 25;
const WHO = { agent: 'a0', parent: null, spawned_by: null };
const signal = new AbortController().signal;

export function benchProvider(fleetId: string): SandboxProvider {
  return dockerProvider({
    docker: new Docker(),
    fleetId,
    runnerImage: 'hermes-fleet-runner',
    runnerMemoryMib: 4096,
    pull: 'never',
  });
}

function spec(): SandboxSpec {
  const name = `${randomBytes(16).toString('hex')}.${randomBytes(6).toString('hex')}`;
  return {
    name,
    sessionKey: name.slice(0, 32),
    image: IMAGE,
    workdir: '/workspace',
    user: undefined,
    env: {},
    network: 'none',
    limits: { cpus: 2, memoryMib: 1024, pids: 256 },
    hasHermes: false,
    expiresAtS: Math.ceil(Date.now() / 1000) + 3600,
  };
}

/** The engine's own price of a box with the same options. */
async function rawCreate(docker: Docker): Promise<Docker.Container> {
  const container = await docker.createContainer({
    Image: IMAGE,
    Cmd: ['sleep', '3600'],
    WorkingDir: '/workspace',
    HostConfig: {
      Init: true,
      NetworkMode: 'none',
      NanoCpus: 2e9,
      Memory: 1024 ** 3,
      MemorySwap: 1024 ** 3,
      PidsLimit: 256,
      LogConfig: { Type: 'none', Config: {} },
    },
  });
  await container.start();
  return container;
}

/** Seed and close of an owned sandbox, against the engine's own create, start and forced removal; interleaved. */
export async function lifeRows(): Promise<Row[]> {
  const docker = new Docker();
  const provider = benchProvider('bench-life');
  await (await provider.create(spec(), { signal })).remove();
  const [seeds, raws, closes, rawCloses]: number[][] = [[], [], [], []];
  for (let n = 0; n < SAMPLES; n++) {
    let box: Sandbox | undefined;
    seeds?.push(
      await timed(async () => {
        box = await provider.create(spec(), { signal });
        await probeSandbox(box, { user: undefined, signal, deadlineMs: 30_000 });
      }),
    );
    closes?.push(await timed(async () => await box?.remove()));
    let raw: Docker.Container | undefined;
    raws?.push(await timed(async () => (raw = await rawCreate(docker))));
    rawCloses?.push(await timed(async () => await raw?.remove({ force: true, v: true })));
  }
  return [
    ratioRow(
      {
        what: 'seed of an owned docker sandbox',
        baseline: 'raw create + start',
        samples: seeds ?? [],
        baselineSamples: raws ?? [],
        unit: 'ms',
      },
      1.4,
    ),
    ratioRow(
      {
        what: 'close of an owned docker sandbox',
        baseline: 'raw force-remove',
        samples: closes ?? [],
        baselineSamples: rawCloses ?? [],
        unit: 'ms',
      },
      1.3,
    ),
  ];
}

/** A begun activation, so that a journal can be written as in the product. */
async function begunActivation(scripts: Scripts): Promise<{
  readonly journal: Journal;
  readonly key: string;
  readonly epoch: string;
  readonly cancellation: Cancellation;
}> {
  const key = sessionKey('bench');
  const at = { key, replyTo: 'default' };
  await scripts.submit(
    at,
    {
      sessionId: 'bench',
      identity: '',
      parkedLimit: 9,
      unreadLimit: 1e9,
      waitTtlMs: 1e9,
      sessionTtlMs: 1e9,
      seedQueue: 'new',
      sweepId: undefined,
    },
    [
      { kind: 'seed', commandId: 'seed', digest: 'd', payload: '{}' },
      { kind: 'activate', commandId: 'a', digest: 'd', payload: '{}' },
    ],
  );
  const seed = await scripts.begin(at, 'seed', 'nonceseed', 9);
  if (seed.status !== 'begun') throw new Error(seed.status);
  await scripts.finish(at, {
    commandId: 'seed',
    fence: seed.view.fence,
    resultClass: 'ok',
    code: '',
    body: 'null',
    blob: '',
    blobTtlMs: 1,
    holdMs: 1,
    queue: 'any',
    engine: '',
    descriptor: '{}',
    released: false,
    lost: false,
    nextNonce: '',
    maxBegins: 9,
  });
  const begun = await scripts.begin(at, 'a', 'nonceactivate', 9);
  if (begun.status !== 'begun') throw new Error(begun.status);
  const cancellation = new Cancellation();
  const { fence, deadline } = begun.view;
  const journal = new Journal({
    scripts,
    at,
    commandId: 'a',
    number: '2',
    fence,
    deadline,
    cancellation,
    permissionMs: 15_000,
    keepMs: 60_000,
  });
  return { journal, key, epoch: fence.slice(0, fence.indexOf('.')), cancellation };
}

/** A command of the model, and one that Hermes makes for a file tool, against one raw exec; interleaved. */
export async function commandRows(): Promise<Row[]> {
  await using server = await disposableRedis();
  const redis = connectRedis(server.url, () => undefined);
  const scripts = new Scripts(redis, new Keys('bench'));
  const { journal, key, epoch, cancellation } = await begunActivation(scripts);
  const provider = benchProvider('bench-commands');
  const sandbox = await provider.create(spec(), { signal });
  const container = new Docker().getContainer(String(sandbox.descriptor['id']));
  await using broker = new Broker({
    sandbox,
    journal,
    sessionKey: key,
    number: '2',
    epoch,
    user: undefined,
    signal: cancellation.signal,
  });
  let id = 0;
  const run = async (isInternal: boolean): Promise<void> => {
    const result = await broker.run({
      id: id++,
      who: WHO,
      command: 'echo hello',
      cwd: '/workspace',
      timeoutS: 60,
      stdin: undefined,
      isInternal,
      cap: 0,
    });
    if (result.output.trim() !== 'hello') throw new Error(`the command said ${JSON.stringify(result)}`);
  };
  const raw = async (): Promise<void> => {
    const exec = await container.exec({ Cmd: ['bash', '-c', 'echo hello'], AttachStdout: true, AttachStderr: true });
    const stream = await exec.start({});
    await new Promise((resolve) => stream.resume().once('end', resolve));
    await exec.inspect();
  };
  for (const warm of [async () => await run(false), async () => await run(true), raw]) await warm();
  const [terminal, resident, base]: number[][] = [[], [], []];
  for (let n = 0; n < SAMPLES; n++) {
    terminal?.push(await timed(async () => await run(false)));
    base?.push(await timed(raw));
    resident?.push(await timed(async () => await run(true)));
  }
  await sandbox.remove();
  redis.disconnect();
  return [
    ratioRow(
      {
        what: 'terminal command, apart, with its journal',
        baseline: 'raw dockerode exec',
        samples: terminal ?? [],
        baselineSamples: base ?? [],
        unit: 'ms',
      },
      1.15,
    ),
    ratioRow(
      {
        what: 'one Hermes-made file command over the resident shell',
        baseline: 'raw dockerode exec',
        samples: resident ?? [],
        baselineSamples: base ?? [],
        unit: 'ms',
      },
      0.2,
    ),
  ];
}
