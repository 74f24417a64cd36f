import type { Sandbox, SandboxProvider } from '@hermes-fleet/worker/sandbox/provider';
import { afterAll, beforeAll, describe, expect } from 'vitest';
import { Bench, closeClean, type ProviderFixture } from './bench.ts';
import { execChecks } from './exec-checks.ts';
import { fileChecks } from './file-checks.ts';
import { lifeChecks } from './life-checks.ts';
import { streamChecks } from './stream-checks.ts';

/**
 * The contract of `SandboxProvider`, which every provider passes; modelled on inspect_ai's `self_check`. A provider
 * without `openProcess` passes it without the checks of streams.
 */
export function describeProvider(
  name: string,
  open: () => Promise<ProviderFixture>,
  options = { hasStreams: true },
): void {
  describe(`provider ${name}`, () => {
    let bench: Bench | undefined;
    let box: Sandbox | undefined;
    const theBench = (): Bench => {
      if (bench === undefined) throw new Error('the fixture was not opened');
      return bench;
    };
    const theBox = (): Sandbox => {
      if (box === undefined) throw new Error('the box was not made');
      return box;
    };
    beforeAll(async () => {
      bench = new Bench(await open());
      box = await bench.box();
      expect(box.openProcess !== undefined).toBe(options.hasStreams);
    });
    afterAll(async () => {
      await box?.remove();
      if (bench !== undefined) await closeClean(bench.fixture);
    });
    execChecks(theBench, theBox);
    if (options.hasStreams) streamChecks(theBench, theBox);
    fileChecks(theBench, theBox);
    lifeChecks(theBench, theBox);
  });
}

/** The same provider with nothing but a blocking exec and file transfer. */
export function withoutStreams(provider: SandboxProvider): SandboxProvider {
  const hide = (box: Sandbox): Sandbox => ({
    name: box.name,
    id: box.id,
    workdir: box.workdir,
    shell: box.shell,
    ...(box.temporary === undefined ? {} : { temporary: box.temporary }),
    descriptor: box.descriptor,
    exec: async (options) => await box.exec(options),
    putFiles: async (files, options) => await box.putFiles(files, options),
    getFiles: async (paths, options) => await box.getFiles(paths, options),
    state: async () => await box.state(),
    remove: async () => await box.remove(),
  });
  return {
    kind: provider.kind,
    isolates: provider.isolates,
    engineId: async () => await provider.engineId(),
    ping: async () => await provider.ping(),
    create: async (spec, options) => hide(await provider.create(spec, options)),
    connect: async (descriptor, options) => hide(await provider.connect(descriptor, options)),
    list: async () => await provider.list(),
    launchRunner: async (options) => await provider.launchRunner(options),
    close: async () => await provider.close(),
  };
}
