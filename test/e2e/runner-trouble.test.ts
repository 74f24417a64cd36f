import { chmod, mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect, inject } from 'vitest';
import { startFleet } from '../setup/fleet.ts';
import { ROOT } from '../setup/processes.ts';
import { freePort } from '../setup/redis-server.ts';
import { verifies } from '../setup/verifies.ts';

verifies(
  ['result:class', 'job:slots'],
  'a worker whose runner does not start takes no session, says so, and goes on by itself once it does',
  async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'fleet-python-'));
    const python = path.join(folder, 'python');
    const write = async (text: string): Promise<void> => {
      await writeFile(`${python}.new`, text);
      await chmod(`${python}.new`, 0o755);
      await rename(`${python}.new`, python);
    };
    await write('#!/bin/sh\necho "no Hermes here" >&2; exit 1\n');
    const port = await freePort();
    await using fleet = await startFleet({
      redisUrl: inject('redisUrl'),
      program: 'worker/src/main.ts',
      provider: 'local',
      env: { FLEET_PROVIDERS: 'local', FLEET_LOCAL_PYTHON: python, FLEET_HEALTH_PORT: String(port) },
    });
    const ready = async (): Promise<string> => await (await fetch(`http://127.0.0.1:${port}/readyz`)).text();
    await expect.poll(ready, { timeout: 10_000 }).toContain('no Hermes here');
    await fleet.client.submit({
      seed: fleet.seed('patient'),
      activations: [{ session_id: 'patient', activation_id: 'a', request: { input: 'hi' } }],
      close: { session_id: 'patient', when: 'idle' },
    });
    await new Promise((resolve) => setTimeout(resolve, 1500));
    expect(await fleet.client.status('patient')).toMatchObject({
      commands: [{ id: 'seed', state: 'waiting' }, {}, {}],
    });
    await write(`#!/bin/sh\nexec ${path.join(ROOT, '.venv/bin/python')} "$@"\n`);
    expect(await fleet.client.wait('patient', 'a')).toMatchObject({ class: 'ok' });
    expect(await ready()).toBe('{"ok":true,"problems":[]}');
    await fleet.client.wait('patient', 'close');
    await rm(folder, { recursive: true, force: true });
  },
);
