import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { dockerProvider } from '@hermes-fleet/worker/sandbox/docker';
import { DockerBox } from '@hermes-fleet/worker/sandbox/docker-box';
import { LABEL } from '@hermes-fleet/worker/sandbox/docker-labels';
import type { SandboxProvider } from '@hermes-fleet/worker/sandbox/provider';
import Docker from 'dockerode';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Bench, closeClean, codeOf, deadline, type ProviderFixture, run, text } from '../conformance/bench.ts';
import { describeProvider } from '../conformance/provider.ts';
import { DEBIAN_IMAGE, makeImages, RUNNER_IMAGE } from '../setup/images.ts';
import { verifies } from '../setup/verifies.ts';

const docker = new Docker();
const newFleet = (): string => `t${randomBytes(4).toString('hex')}`;
const ANSWER_MS = 110_000;

function provide(fleetId: string, engine = docker): SandboxProvider {
  return dockerProvider({ docker: engine, fleetId, runnerImage: RUNNER_IMAGE, runnerMemoryMib: 512, pull: 'never' });
}

async function containersOf(fleetId: string): Promise<string[]> {
  const filters = JSON.stringify({ label: [`${LABEL.fleet}=${fleetId}`] });
  return (await docker.listContainers({ all: true, filters })).map(({ Id: id, State: state }) => `${id} ${state}`);
}

async function fixture(): Promise<ProviderFixture> {
  await makeImages(docker);
  const [fleet, other] = [newFleet(), newFleet()];
  return {
    provider: provide(fleet),
    peer: provide(fleet),
    foreign: provide(other),
    spec: { image: DEBIAN_IMAGE, limits: { cpus: 1, memoryMib: 512, pids: 512 } },
    impossible: { user: 'no-such-user' },
    otherUser: '1234',
    hasOwnProcesses: true,
    leftovers: async () => [...(await containersOf(fleet)), ...(await containersOf(other))],
    close: async () => {
      for (const each of [...(await containersOf(fleet)), ...(await containersOf(other))])
        await docker.getContainer(each.split(' ')[0] ?? '').remove({ force: true });
    },
  };
}

describeProvider('docker', async () => await fixture());
describe('docker boxes', () => {
  let bench: Bench;
  let fleet: string;
  beforeAll(async () => {
    bench = new Bench(await fixture());
    await using box = await bench.box();
    fleet = (await docker.getContainer(String(box.descriptor['id'])).inspect()).Config.Labels[LABEL.fleet] ?? '';
  });
  afterAll(async () => {
    await closeClean(bench.fixture);
  });

  verifies(
    'seed:own',
    'a box has the limits, the labels and the hardening that its spec and our rules say',
    async () => {
      const spec = bench.spec({ limits: { cpus: 0.5, memoryMib: 128, pids: 77 } });
      await using box = await bench.box(spec);
      const {
        HostConfig: host,
        Config: config,
        Mounts: mounts,
      } = await docker.getContainer(String(box.descriptor['id'])).inspect();
      expect(host).toMatchObject({
        NanoCpus: 5e8,
        Memory: 128 * 1024 * 1024,
        MemorySwap: 128 * 1024 * 1024,
        PidsLimit: 77,
        NetworkMode: 'none',
        Privileged: false,
        CapDrop: expect.arrayContaining(['NET_RAW', 'MKNOD']) as string[],
      });
      expect([mounts, host.Binds ?? [], host.Devices ?? [], host.CapAdd ?? []]).toEqual([[], [], [], []]);
      expect(config.Labels).toMatchObject({
        [LABEL.fleet]: fleet,
        [LABEL.lease]: spec.name,
        [LABEL.session]: spec.sessionKey,
        [LABEL.expires]: String(spec.expiresAtS),
      });
      expect(
        await text(
          box,
          'cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/memory.max',
        ),
      ).toBe('77\n134217728\n');
      expect(await text(box, 'ls /sys/class/net')).toBe('lo\n');
    },
  );

  test('a command over the memory limit is killed, and the box goes on', async () => {
    await using box = await bench.box({ limits: { cpus: 1, memoryMib: 64, pids: 64 } });
    const { exitCode } = await run(box, 'head -c 300000000 /dev/zero | tail -c 299999999 >/dev/null');
    expect(exitCode).toBe(137);
    expect(await text(box, 'echo ok')).toBe('ok\n');
  });

  test('what commands leave behind is reaped when it ends', async () => {
    await using box = await bench.box({ limits: { cpus: 1, memoryMib: 256, pids: 64 } });
    // More than the table of processes holds.
    for (let n = 0; n < 4; n++)
      await text(
        box,
        'for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do (sleep 0.05 &); done; sleep 0.3',
      );
    expect(await text(box, 'grep -l "^State:.Z" /proc/[0-9]*/status 2>/dev/null | wc -l')).toBe('0\n');
  });

  test('a box whose time is over ends by itself, whoever is left to remove it', async () => {
    const box = await bench.box({ expiresAtS: Math.floor(Date.now() / 1000) + 61 });
    expect((await docker.getContainer(String(box.descriptor['id'])).inspect()).Config.Cmd?.at(-1)).toMatch(
      / sleep 6[01] /,
    );
    await box.remove();
  });

  test("a missing image is told within seconds, and is the operator's", async () => {
    const begun = performance.now();
    const work = bench.fixture.provider.create(bench.spec({ image: 'hermes-fleet-test:none' }), { signal: deadline() });
    expect(await codeOf(work)).toBe('infra/sandbox_image');
    expect(performance.now() - begun).toBeLessThan(10_000);
  });

  test.each([
    ['an unknown user', { user: 'nobody-here' }],
    ['a bad network limit of memory', { limits: { cpus: 1, memoryMib: 1, pids: 10 } }],
    ['more processors than there are', { limits: { cpus: 10_000, memoryMib: 128, pids: 10 } }],
    ['a relative workdir', { workdir: 'not/absolute' }],
    ['a workdir below a file', { workdir: '/etc/passwd/x' }],
    ['an environment that cannot be', { env: { '': 'x' } }],
    ['a name that is none', { name: '../x' }],
  ])('%s leaves no half-made container behind, five times over', async (_, more) => {
    for (let times = 0; times < 5; times++)
      expect(await codeOf(bench.fixture.provider.create(bench.spec(more), { signal: deadline() }))).toMatch(
        /^infra\/sandbox_/,
      );
    expect(await containersOf(fleet)).toEqual([]);
  });

  verifies('seed:no-debris', 'a name that our own half-made container has is taken over', async () => {
    const spec = bench.spec();
    const labels = { [LABEL.fleet]: fleet, [LABEL.lease]: spec.name };
    await docker.createContainer({ name: `hf-${fleet}-${spec.name}`, Image: DEBIAN_IMAGE, Labels: labels });
    const box = await bench.box(spec);
    expect(await text(box, 'echo ok')).toBe('ok\n');
    expect(await containersOf(fleet)).toHaveLength(1);
    await box.remove();
  });

  test("a name that somebody else's container has stays theirs", async () => {
    const spec = bench.spec();
    const foreign = await docker.createContainer({ name: `hf-${fleet}-${spec.name}`, Image: DEBIAN_IMAGE });
    try {
      expect(await codeOf(bench.box(spec))).toBe('infra/sandbox_create');
      expect((await foreign.inspect()).State.Status).toBe('created');
    } finally {
      await foreign.remove();
    }
  });

  test('a box that was stopped, paused or killed from outside is sandbox_lost', async () => {
    const box = await bench.box();
    const container = docker.getContainer(String(box.descriptor['id']));
    await container.pause();
    expect(await codeOf(bench.fixture.peer.connect(box.descriptor, { signal: deadline() }))).toBe('infra/sandbox_lost');
    expect(await codeOf(run(box, 'true'))).toBe('infra/sandbox_lost');
    await container.unpause();
    const running = codeOf(run(box, 'touch began; sleep 600'));
    await expect.poll(async () => await text(box, 'ls'), { timeout: 20_000 }).toContain('began');
    await container.kill();
    expect(await running).toBe('infra/sandbox_lost');
    expect(await box.state()).toBe('stopped');
    expect(await codeOf(bench.fixture.peer.connect(box.descriptor, { signal: deadline() }))).toBe('infra/sandbox_lost');
    await box.remove();
  });

  test('a descriptor that is none of ours is sandbox_lost', async () => {
    for (const descriptor of [{}, { id: 'x' }, { id: '../info', name: 'x', workdir: '/', shell: { path: 'sh' } }])
      expect({
        descriptor,
        code: await codeOf(bench.fixture.peer.connect(descriptor, { signal: deadline() })),
      }).toEqual({
        descriptor,
        code: 'infra/sandbox_lost',
      });
  });
});

/** Something that listens like an engine, and answers as `answer` does. */
async function fakeEngine(
  answer: (socket: Socket, request: string) => void,
): Promise<{ docker: Docker; stop(): Promise<void> }> {
  const socketPath = path.join(tmpdir(), `fleet-engine-${randomBytes(4).toString('hex')}.sock`);
  const sockets = new Set<Socket>();
  const server: Server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('data', (data) => answer(socket, data.toString('latin1')));
  }).listen(socketPath);
  await once(server, 'listening');
  return {
    docker: new Docker({ socketPath }),
    stop: async () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      await rm(socketPath, { force: true });
    },
  };
}

describe('an engine in trouble', () => {
  const everyCall = (engine: Docker): Record<string, () => Promise<unknown>> => {
    const provider = provide(newFleet(), engine);
    const shell = { path: 'sh', isBash: false, pathSuffix: undefined };
    const descriptor = { id: 'f'.repeat(64), name: 'x', workdir: '/', shell, startedAt: '', isBorrowed: false };
    const box = new DockerBox(engine.getContainer(descriptor.id), descriptor);
    const io = { signal: deadline(ANSWER_MS * 2), deadlineMs: 1000 };
    const spec = new Bench({ spec: { image: DEBIAN_IMAGE } } as ProviderFixture).spec();
    return {
      engineId: async () => await provider.engineId(),
      create: async () => await provider.create(spec, io),
      connect: async () => await provider.connect(descriptor, io),
      list: async () => await provider.list(),
      launchRunner: async () =>
        await provider.launchRunner({ signal: io.signal, onOutput: () => undefined, onLog: () => undefined }),
      exec: async () => await box.exec({ ...io, argv: ['true'], maxBytes: 1 }),
      openProcess: async () => await box.openProcess({ ...io, argv: ['true'], onOutput: () => undefined }),
      putFiles: async () => await box.putFiles([{ path: 'x', content: Buffer.from('x') }], io),
      getFiles: async () => await box.getFiles(['x'], { ...io, maxBytes: 1 }),
      state: async () => await box.state(),
      remove: async () => await box.remove(),
    };
  };

  const codesOf = async (engine: Docker): Promise<Record<string, string>> => {
    const calls = Object.entries(everyCall(engine));
    return Object.fromEntries(
      await Promise.all(calls.map(async ([name, call]) => [name, await codeOf(call())] as const)),
    );
  };
  const lost = (engine: Docker): Record<string, string> =>
    Object.fromEntries(Object.keys(everyCall(engine)).map((name) => [name, 'infra/engine_lost']));

  test(
    'an engine that never answers ends every call by its deadline',
    async () => {
      await using engine = disposable(await fakeEngine(() => undefined));
      expect(await provide(newFleet(), engine.docker).ping()).toBe(false);
      expect(await codesOf(engine.docker)).toEqual(lost(engine.docker));
    },
    ANSWER_MS,
  );

  test(
    'an engine that cuts the connection in mid body ends every call',
    async () => {
      const part = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"ID":"half';
      await using engine = disposable(await fakeEngine((socket) => socket.write(part, () => socket.destroy())));
      expect(await codesOf(engine.docker)).toEqual(lost(engine.docker));
    },
    ANSWER_MS,
  );

  test('an engine that is not there is told at once', async () => {
    const begun = performance.now();
    const engine = new Docker({ socketPath: path.join(tmpdir(), 'fleet-no-engine.sock') });
    expect(await codesOf(engine)).toEqual(lost(engine));
    expect(performance.now() - begun).toBeLessThan(10_000);
  });

  test('an engine that refuses with a full disk or an exhausted pool says so with a code', async () => {
    const refuse = async (message: string): Promise<string> => {
      const body = JSON.stringify({ message });
      const reply = `HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
      await using engine = disposable(await fakeEngine((socket) => socket.write(reply)));
      return await codeOf(provide(newFleet(), engine.docker).list());
    };
    expect(await refuse('write /x: no space left on device')).toBe('infra/sandbox_disk');
    expect(await refuse('could not find an available, non-overlapping IPv4 address pool: fully subnetted')).toBe(
      'infra/capacity',
    );
    expect(await refuse('something else')).toBe('infra/engine_lost');
  });
});

function disposable<T extends { stop(): Promise<void> }>(engine: T): T & AsyncDisposable {
  return Object.assign(engine, { [Symbol.asyncDispose]: async () => await engine.stop() });
}
