import { readdir } from 'node:fs/promises';
import { describe, expect, test } from 'vitest';
import { abortable, codeOf, deadline, run, text } from '../conformance/bench.ts';
import { dockerFleet } from '../setup/docker-fixture.ts';
import { BARE_IMAGE, BUSYBOX_IMAGE } from '../setup/images.ts';

describe('shells of docker boxes', () => {
  test.each([BUSYBOX_IMAGE, BARE_IMAGE])(
    'bash and POSIX tools are there in %s, in its second box too',
    async (image) => {
      await using fleet = await dockerFleet();
      for (const turn of ['first', 'second']) {
        await using box = await fleet.bench.box({ image });
        expect(box.shell).toEqual({ path: '/.hermes-fleet/bin/bash', isBash: true, pathSuffix: '/.hermes-fleet/bin' });
        expect(await text(box, `shopt -s nullglob && echo ${turn} | sed 's/$/!/'`)).toBe(`${turn}!\n`);
        expect(await fleet.containers()).toHaveLength(1);
      }
    },
  );

  test('an image with a shell of its own is left as it is', async () => {
    await using fleet = await dockerFleet();
    await using box = await fleet.bench.box();
    expect(box.shell).toEqual({ path: 'bash', isBash: true, pathSuffix: undefined });
    expect((await run(box, 'ls -d /.hermes-fleet')).exitCode).toBe(2);
  });
});

describe('docker boxes of a user, of a lease, of an image', () => {
  test('an empty workdir belongs to the user of the box', async () => {
    await using fleet = await dockerFleet();
    await using box = await fleet.bench.box({ user: '1234', workdir: '/deep/work' });
    expect(await text(box, 'id -u; pwd; touch file; stat -c %u file')).toBe('1234\n/deep/work\n1234\n');
  });

  test('a box of a lease replaces the one that an earlier try had started', async () => {
    await using fleet = await dockerFleet();
    const spec = fleet.bench.spec();
    const first = await fleet.provider.create(spec, { signal: deadline() });
    const second = await fleet.bench.fixture.peer.create(spec, { signal: deadline() });
    expect([await first.state(), await second.state()]).toEqual(['gone', 'running']);
    expect(await fleet.containers()).toHaveLength(1);
    await second.remove();
  });

  test.each(['../containers/x', 'UPPER/Case', 'a b', '-x', 'http://x/y'])('%j is no image', async (image) => {
    await using fleet = await dockerFleet();
    const work = fleet.provider.create(fleet.bench.spec({ image }), { signal: deadline() });
    expect(await codeOf(work)).toBe('infra/sandbox_image');
  });
});

describe('docker boxes at work', () => {
  test('a file for a full disk is sandbox_disk', async () => {
    await using fleet = await dockerFleet();
    await using box = await fleet.bench.box();
    const io = { signal: deadline(), deadlineMs: 30_000 };
    expect(await codeOf(box.putFiles([{ path: '/dev/full', content: Buffer.alloc(100_000) }], io))).toBe(
      'infra/sandbox_disk',
    );
  });

  test('the time that a box has used is told', async () => {
    await using fleet = await dockerFleet();
    await using box = await fleet.bench.box();
    await text(box, 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done');
    // Engines publish it once a second; what is not there at once is left out.
    await expect.poll(async () => (await box.usage?.())?.cpuTimeS, { timeout: 20_000 }).toBeGreaterThan(0.05);
  });

  test('60 commands, some of them aborted, leave no connection open', async () => {
    await using fleet = await dockerFleet();
    await using box = await fleet.bench.box();
    const open = async (): Promise<number> => (await readdir('/proc/self/fd')).length;
    await text(box, 'true');
    const before = await open();
    const one = async (index: number): Promise<unknown> => {
      if (index % 5 !== 0) return await text(box, 'echo x');
      const controller = abortable();
      setTimeout(() => controller.abort(), 20 * index);
      return await expect(run(box, 'sleep 60', { signal: controller.signal })).rejects.toBe(controller.reason);
    };
    for (let round = 0; round < 6; round++) await Promise.all(Array.from({ length: 10 }, async (_, n) => await one(n)));
    await expect.poll(open, { timeout: 20_000 }).toBeLessThanOrEqual(before + 5);
  });
});

describe('the runner host on docker', () => {
  const quiet = { onOutput: () => undefined, onLog: () => undefined };

  test('it says that it is ready, has no way out, and is gone when it is removed', async () => {
    await using fleet = await dockerFleet();
    let output = '';
    const runner = await fleet.provider.launchRunner({
      ...quiet,
      signal: deadline(),
      onOutput: (chunk) => (output += chunk.toString('latin1')),
    });
    await expect.poll(() => output, { timeout: 60_000 }).toContain('"hermes"');
    const [id = ''] = await fleet.containers();
    const { HostConfig: host } = await fleet.docker.getContainer(id).inspect();
    expect(host).toMatchObject({ NetworkMode: 'none', ReadonlyRootfs: true, AutoRemove: true, CapDrop: ['ALL'] });
    expect(await fleet.provider.list()).toEqual([]);
    await runner.remove();
    expect((await runner.ended).reason).toMatch(/runner host/);
    await expect.poll(fleet.containers, { timeout: 20_000 }).toEqual([]);
  });

  test('the end of its container is heard of, and writing to it then does no harm', async () => {
    await using fleet = await dockerFleet();
    const runner = await fleet.provider.launchRunner({ ...quiet, signal: deadline() });
    const [id = ''] = await fleet.containers();
    await fleet.docker.getContainer(id).kill();
    expect((await runner.ended).reason).toMatch(/ended|lost/);
    runner.write(Buffer.from('x'));
    await runner.remove();
    await expect.poll(fleet.containers, { timeout: 20_000 }).toEqual([]);
  });

  test('a start that is aborted leaves nothing, at whatever moment', async () => {
    await using fleet = await dockerFleet();
    for (const afterMs of [0, 20, 100]) {
      const controller = abortable();
      setTimeout(() => controller.abort(), afterMs);
      const launch = fleet.provider.launchRunner({ ...quiet, signal: controller.signal });
      await (await launch.catch(() => undefined))?.remove();
    }
    await expect.poll(fleet.containers, { timeout: 20_000 }).toEqual([]);
  });
});
