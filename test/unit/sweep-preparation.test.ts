import { mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { fleetSweepId, type Manifest, writeManifest } from '@hermes-fleet/producer/internal/sweep-manifest';
import { prepareSweep, type PreparationValues } from '@hermes-fleet/producer/internal/sweep-preparation';

let dir: string;
beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), 'fleet-prepare-'));
  await config({});
  await tasks('a', 'b');
});
afterEach(async () => await rm(dir, { recursive: true }));

const at = (name: string): string => path.join(dir, name);
const config = async (change: object): Promise<void> =>
  await writeFile(
    at('c.json'),
    JSON.stringify({
      sandbox: { provider: 'stub', image: 'none' },
      model: { base_url: 'http://127.0.0.1', name: 'echo' },
      ...change,
    }),
  );
const tasks = async (...texts: string[]): Promise<void> =>
  await writeFile(
    at('t.jsonl'),
    texts.map((input) => `${JSON.stringify({ responses_create_params: { input } })}\n`).join(''),
  );

async function prepare(change: Partial<PreparationValues> = {}): Promise<Manifest> {
  const values = { output: at('out.jsonl'), repeats: 2, config: at('c.json'), ...change };
  await using prepared = await prepareSweep(
    { args: [at('t.jsonl')], maxBodyBytes: async () => await Promise.resolve(1e6), report: () => undefined },
    values,
  );
  if (prepared.manifest === undefined) throw new Error('nothing to run');
  return prepared.manifest;
}

/** As a first run leaves things. */
async function begin(): Promise<Manifest> {
  const manifest = await prepare();
  await writeManifest(at('out_manifest.json'), manifest);
  return manifest;
}

test('a resumed sweep keeps its name and the names of its sessions', async () => {
  const { sweep_id, run_key, round } = await begin();
  expect(await prepare({ resume: true })).toMatchObject({ sweep_id, run_key, round });
  expect(await prepare({ resume: true, repeats: 5 })).toMatchObject({ sweep_id, options: { repeats: 5 } });
});

test('what is resumed after a cancel has a new name in the fleet', async () => {
  const manifest = await begin();
  await writeManifest(at('out_manifest.json'), { ...manifest, round: 2 });
  expect(fleetSweepId(await prepare({ resume: true }))).toBe(`${manifest.sweep_id}.2`);
});

test('a changed configuration is refused by the field that differs', async () => {
  await begin();
  await config({ model: { base_url: 'http://127.0.0.1', name: 'other' } });
  await expect(prepare({ resume: true })).rejects.toThrow(/config\.model\.name: "echo" before, "other" now/);
  await config({ hermes: { max_turns: 3 } });
  await expect(prepare({ resume: true })).rejects.toThrow(/config\.hermes: absent before/);
});

test('a changed tasks file is refused by the row that differs', async () => {
  await begin();
  await tasks('a', 'c');
  await expect(prepare({ resume: true })).rejects.toThrow(/tasks: row 1 \(line 2\) has changed/);
  await tasks('a');
  await expect(prepare({ resume: true })).rejects.toThrow(/tasks: row 1 \(line 2\) is not there any more/);
  await tasks('a', 'b', 'c');
  await expect(prepare({ resume: true })).rejects.toThrow(/is not the file it was/);
});

test('fewer repeats and another sweep id are refused', async () => {
  await begin();
  await expect(prepare({ resume: true, repeats: 1 })).rejects.toThrow(/repeats: 2 before, 1 now/);
  await expect(prepare({ resume: true, sweepId: 'other' })).rejects.toThrow(/sweep_id: .* before, other now/);
});

test('results of before are never written over', async () => {
  await writeFile(at('out.jsonl'), '{}\n');
  await expect(prepare()).rejects.toThrow(/out\.jsonl is not empty: go on with --resume/);
  await expect(prepare({ resume: true })).rejects.toThrow(/out_manifest\.json is missing/);
});

test('files are locked while they are in use, and the lock of a dead process is no lock', async () => {
  const input = {
    args: [at('t.jsonl')],
    maxBodyBytes: async () => await Promise.resolve(1e6),
    report: () => undefined,
  };
  await writeFile(at('out.jsonl.lock'), '1 elsewhere');
  await expect(prepare()).rejects.toThrow(/is being written by process 1 on elsewhere/);
  await writeFile(at('out.jsonl.lock'), '');
  await expect(prepare()).rejects.toMatchObject({ code: 'refused/invalid' });
  const longAgo = new Date(Date.now() - 600_000);
  await utimes(at('out.jsonl.lock'), longAgo, longAgo);
  {
    await using _held = await prepareSweep(input, { output: at('out.jsonl'), repeats: 1, config: at('c.json') });
    expect(await readdir(dir)).toContain('out.jsonl.lock');
  }
  expect(await readdir(dir)).not.toContain('out.jsonl.lock');
});

test('a sweep id that cannot name a stream is refused', async () => {
  await expect(prepare({ sweepId: 'a/b' })).rejects.toThrow(/--sweep-id/);
});
