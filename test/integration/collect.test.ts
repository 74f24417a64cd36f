import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { collect } from '@hermes-fleet/worker/processors/collect';
import { localProvider } from '@hermes-fleet/worker/sandbox/local';
import { afterAll, beforeAll, expect } from 'vitest';
import { Bench } from '../conformance/bench.ts';
import { verifies } from '../setup/verifies.ts';

let root: string;
beforeAll(async () => {
  root = await mkdtemp(path.join(tmpdir(), 'fleet-collect-'));
});
afterAll(async () => await rm(root, { recursive: true, force: true }));

verifies('result:collect', 'a command that hangs takes nothing away from the others, nor from the files', async () => {
  const provider = localProvider({ fleetId: 'collect', root, python: '', hostScript: '', warn: () => undefined });
  const box = await provider.create(new Bench({ spec: {} } as never).spec(), { signal: AbortSignal.timeout(10_000) });
  try {
    await box.putFiles([{ path: 'kept', content: Buffer.from('x\n') }], {
      signal: AbortSignal.timeout(5000),
      deadlineMs: 5000,
    });
    const begun = performance.now();
    const wanted = {
      commands: [
        { name: 'first', argv: ['echo', 'one'] },
        { name: 'hangs', argv: ['sh', '-c', 'echo begun; sleep 600'] },
        { name: 'last', argv: ['echo', 'three'] },
      ],
      files: ['kept', 'missing'],
      max_bytes: 1024,
    };
    const taken = await collect(box, wanted, { user: undefined, signal: AbortSignal.timeout(4000), closeMs: 4000 });
    expect(performance.now() - begun).toBeLessThan(3900);
    expect(taken.commands).toMatchObject({
      first: { exit_code: 0, stdout: 'one\n', error: null },
      hangs: {
        stdout: 'begun\n',
        error: expect.stringMatching(/^killed after \d+ ms, its share of the close's time$/),
      },
      last: { exit_code: 0, stdout: 'three\n' },
    });
    expect(taken.files).toMatchObject([
      { path: 'kept', text: 'x\n' },
      { path: 'missing', error: 'missing' },
    ]);
  } finally {
    await box.remove();
  }
});
