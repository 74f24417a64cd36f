import type { Sandbox } from '@hermes-fleet/worker/sandbox/provider';
import { describe, expect, test } from 'vitest';
import { verifies } from '../setup/verifies.ts';
import { abortable, type Bench, codeOf, countAlive, deadline, newSleep, run, text } from './bench.ts';

const io = (): { readonly signal: AbortSignal; readonly deadlineMs: number } => ({
  signal: deadline(),
  deadlineMs: 30_000,
});

/** Checks of how boxes come, are found, and go. */
export function lifeChecks(bench: () => Bench, box: () => Sandbox): void {
  describe('life', () => {
    test('the engine answers, and has one id for all of its workers', async () => {
      const { provider, peer } = bench().fixture;
      expect([await provider.ping(), await peer.ping()]).toEqual([true, true]);
      expect(await provider.engineId()).toBe(await peer.engineId());
      expect(await provider.engineId()).toMatch(/^[A-Za-z0-9._-]+$/);
    });

    verifies('session:any-worker', 'another worker finds a box by its descriptor, with the files in it', async () => {
      await box().putFiles([{ path: 'shared', content: Buffer.from('seen') }], io());
      const descriptor = JSON.parse(JSON.stringify(box().descriptor)) as Record<string, unknown>;
      const again = await bench().fixture.peer.connect(descriptor, { signal: deadline() });
      expect(await text(again, 'cat shared; pwd')).toBe(`seen${box().workdir}\n`);
      expect([again.name, again.id, again.shell]).toEqual([box().name, box().id, box().shell]);
    });

    test('what one box writes no other box sees', async () => {
      await using first = await bench().box();
      await using second = await bench().box();
      await text(first, 'echo first >mine');
      await text(second, 'echo second >mine');
      expect([await text(first, 'cat mine'), await text(second, 'cat mine')]).toEqual(['first\n', 'second\n']);
      expect(second.id).not.toBe(first.id);
    });

    test('the environment of the spec is there in every command', async () => {
      await using own = await bench().box({ env: { OF_THE_TASK: "a b'c" } });
      expect(await text(own, 'printf %s "$OF_THE_TASK"')).toBe("a b'c");
    });

    verifies('seed:own', 'removing a box leaves nothing of it, and may be done twice', async () => {
      const { provider, leftovers } = bench().fixture;
      const before = await leftovers();
      const own = await bench().box();
      expect(await own.state()).toBe('running');
      await run(own, 'echo x >file; (sleep 600 &) >/dev/null 2>&1');
      await own.remove();
      await own.remove();
      expect(await own.state()).toBe('gone');
      expect((await leftovers()).toSorted()).toEqual(before.toSorted());
      expect(await codeOf(provider.connect(own.descriptor, { signal: deadline() }))).toBe('infra/sandbox_lost');
    });

    test('two that remove a box at once both succeed', async () => {
      const own = await bench().box();
      const other = await bench().fixture.peer.connect(own.descriptor, { signal: deadline() });
      await Promise.all([own.remove(), other.remove(), own.remove()]);
      expect(await own.state()).toBe('gone');
    });

    test('removing a box ends a command in it, as sandbox_lost', async () => {
      await using own = await bench().box();
      const running = codeOf(run(own, 'touch began; sleep 600'));
      await expect.poll(async () => (await text(own, 'ls')).includes('began'), { timeout: 20_000 }).toBe(true);
      const begun = performance.now();
      await own.remove();
      expect(await running).toBe('infra/sandbox_lost');
      expect(performance.now() - begun).toBeLessThan(15_000);
    });

    test('a box is listed with its session and its expiry, for its own fleet only', async () => {
      const { provider, peer, foreign } = bench().fixture;
      const spec = bench().spec();
      const own = await provider.create(spec, { signal: deadline() });
      const strange = await foreign.create(bench().spec(), { signal: deadline() });
      try {
        const found = (await peer.list()).find(({ name }) => name === spec.name);
        expect(found).toMatchObject({ name: spec.name, sessionKey: spec.sessionKey, expiresAtS: spec.expiresAtS });
        expect((await peer.list()).map(({ name }) => name)).not.toContain(strange.name);
        await found?.remove();
        await found?.remove();
        expect(await own.state()).toBe('gone');
        expect((await peer.list()).map(({ name }) => name)).not.toContain(spec.name);
        expect(await strange.state()).toBe('running');
      } finally {
        await own.remove();
        await strange.remove();
      }
    });

    verifies('seed:no-debris', 'a box that cannot be made leaves nothing, and is refused with a type', async () => {
      const { provider, impossible, leftovers } = bench().fixture;
      const before = await leftovers();
      const work = provider.create(bench().spec(impossible), { signal: deadline() });
      expect(await codeOf(work)).toMatch(/^infra\/sandbox_/);
      expect((await leftovers()).toSorted()).toEqual(before.toSorted());
    });

    verifies('seed:no-debris', 'a box whose making is aborted leaves nothing, at whatever moment', async () => {
      const { provider, leftovers } = bench().fixture;
      const before = await leftovers();
      for (const afterMs of [0, 10, 50, 150, 400]) {
        const { signal, reason, abort } = abortable();
        setTimeout(abort, afterMs);
        const outcome = await provider.create(bench().spec(), { signal }).catch((error: unknown) => error);
        if (outcome === reason) continue;
        // It was quicker than the abort.
        expect(outcome).toMatchObject({ id: expect.any(String) as string });
        await (outcome as Sandbox).remove();
      }
      await expect.poll(async () => (await leftovers()).toSorted(), { timeout: 20_000 }).toEqual(before.toSorted());
    });

    test('400 orphans do not use up the table of processes', async (context) => {
      context.skip(!bench().fixture.hasOwnProcesses, 'boxes share the table of the machine');
      await using own = await bench().box({ limits: { cpus: 2, memoryMib: 4096, pids: 256 } });
      await text(own, 'i=0; while [ $i -lt 400 ]; do i=$((i+1)); (sleep 0 &) ; done');
      expect(await text(own, 'echo ok')).toBe('ok\n');
      const zombies = 'grep -lE "^State:.*Z" /proc/[0-9]*/status 2>/dev/null | wc -l';
      await expect.poll(async () => Number(await text(own, zombies)), { timeout: 20_000 }).toBe(0);
    });

    test('a process that has left its session and group goes with the box', async () => {
      await using own = await bench().box();
      const sleep = newSleep();
      await run(own, `setsid ${sleep} >/dev/null 2>&1 </dev/null &`);
      await expect.poll(async () => await countAlive(own, sleep), { timeout: 20_000 }).toBe(1);
      await own.remove();
      if (bench().fixture.hasOwnProcesses) return;
      expect(await countAlive(box(), sleep)).toBe(0);
    });
  });
}
