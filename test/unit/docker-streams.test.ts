import { PassThrough } from 'node:stream';
import { demultiplexer, readMultiplexed } from '@hermes-fleet/worker/sandbox/docker-streams';
import * as fc from 'fast-check';
import { expect, test } from 'vitest';

interface Frame {
  readonly type: number;
  readonly data: Buffer;
}

function encode({ type, data }: Frame): Buffer {
  const header = Buffer.alloc(8);
  header[0] = type;
  header.writeUInt32BE(data.length, 4);
  return Buffer.concat([header, data]);
}

/** Cuts at the given places, whatever they fall on. */
function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const sorted = [...new Set(places.map((place) => place % (bytes.length + 1)))].toSorted((a, b) => a - b);
  const edges = [0, ...sorted, bytes.length];
  return edges.slice(1).map((end, index) => bytes.subarray(edges[index], end));
}

function collect(chunks: readonly Buffer[]): { stdout: Buffer; stderr: Buffer } {
  const got = { stdout: [] as Buffer[], stderr: [] as Buffer[] };
  const parts = demultiplexer((chunk, stream) => void got[stream].push(Buffer.from(chunk)));
  for (const chunk of chunks) parts.push(chunk);
  return { stdout: Buffer.concat(got.stdout), stderr: Buffer.concat(got.stderr) };
}

const frames = fc.array(
  fc.record({
    type: fc.constantFrom(0, 1, 2),
    data: fc.uint8Array({ maxLength: 40 }).map((data) => Buffer.from(data)),
  }),
  { maxLength: 30 },
);

test('frames come apart the same wherever the connection cuts them', () => {
  fc.assert(
    fc.property(frames, fc.array(fc.nat(2000), { maxLength: 40 }), (sent, places) => {
      const { stdout, stderr } = collect(cut(Buffer.concat(sent.map(encode)), places));
      const of = (wanted: (type: number) => boolean): Buffer =>
        Buffer.concat(sent.filter(({ type }) => wanted(type)).map(({ data }) => data));
      expect(stdout.equals(of((type) => type !== 2))).toBe(true);
      expect(stderr.equals(of((type) => type === 2))).toBe(true);
    }),
  );
});

test('100,000 frames of one byte in a single chunk neither overflow the stack nor take quadratic time', () => {
  const one = Array.from({ length: 100_000 }, (_, index) =>
    encode({ type: 1 + (index % 2), data: Buffer.from([index % 251]) }),
  );
  const begun = performance.now();
  const { stdout, stderr } = collect([Buffer.concat(one)]);
  expect([stdout.length, stderr.length]).toEqual([50_000, 50_000]);
  expect(performance.now() - begun).toBeLessThan(5000);
});

test('a frame of an unknown type ends the reading, with what came before it kept', () => {
  const got: Buffer[] = [];
  const parts = demultiplexer((chunk) => void got.push(chunk));
  const bad = encode({ type: 3, data: Buffer.from('engine trouble') });
  expect(() => parts.push(Buffer.concat([encode({ type: 1, data: Buffer.from('kept') }), bad]))).toThrow(/type 3/);
  expect(Buffer.concat(got).toString()).toBe('kept');
});

test('a connection with an unknown frame is lost, and does not crash its reader', async () => {
  const connection = new PassThrough();
  const ended = readMultiplexed(connection, () => undefined);
  connection.write(encode({ type: 3, data: Buffer.from('engine trouble') }));
  expect((await ended).lost?.message).toMatch(/type 3/);
  expect(connection.destroyed).toBe(true);
});

test('a connection that ends between frames is whole', async () => {
  const connection = new PassThrough();
  const ended = readMultiplexed(connection, () => undefined);
  connection.end(encode({ type: 1, data: Buffer.from('all of it') }));
  expect(await ended).toEqual({ lost: undefined });
});

test.each([
  ['in mid header', 4],
  ['in mid frame', 12],
])('a connection that ends %s is lost', async (_, bytes) => {
  const connection = new PassThrough();
  const ended = readMultiplexed(connection, () => undefined);
  connection.end(encode({ type: 1, data: Buffer.from('all of it') }).subarray(0, bytes));
  expect((await ended).lost).toBeInstanceOf(Error);
});

test('a connection that is destroyed before its end is lost', async () => {
  const connection = new PassThrough();
  const ended = readMultiplexed(connection, () => undefined);
  connection.destroy();
  expect((await ended).lost).toBeInstanceOf(Error);
});
