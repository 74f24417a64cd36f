import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  encodeFrames,
  encodeLine,
  FRAME,
  frameParser,
  type Line,
  lineParser,
  MAX_PAYLOAD,
} from '@hermes-fleet/worker/channel/frames';

function chunked(bytes: Buffer, cuts: readonly number[]): Buffer[] {
  const ends = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].toSorted((one, other) => one - other);
  return [...ends, bytes.length].map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end));
}

const bytes = (maxLength = 300) => fc.uint8Array({ maxLength }).map((each) => Buffer.from(each));
const cuts = fc.array(fc.nat(5000), { maxLength: 40 });

test('frames arrive as they were sent, wherever the stream is cut', () => {
  const frame = fc.record({
    activation: fc.nat(2 ** 32 - 1),
    kind: fc.constantFrom(...Object.values(FRAME)),
    payload: bytes(),
  });
  fc.assert(
    fc.property(fc.array(frame, { maxLength: 12 }), cuts, (frames, at) => {
      const stream = Buffer.concat(
        frames.map(({ activation, kind, payload }) => encodeFrames(activation, kind, payload)),
      );
      const seen: object[] = [];
      const parse = frameParser((activation, kind, payload) =>
        seen.push({ activation, kind, payload: Buffer.from(payload) }),
      );
      for (const chunk of chunked(stream, at)) parse(chunk);
      expect(seen).toEqual(frames);
    }),
  );
});

test.each([0, 1, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 3 * MAX_PAYLOAD])(
  'a message of %i bytes is cut into whole frames',
  (size) => {
    const payload = Buffer.alloc(size, 7);
    const sizes: number[] = [];
    const parts: Buffer[] = [];
    frameParser((activation, kind, part) => {
      expect([activation, kind]).toEqual([5, FRAME.data]);
      sizes.push(part.length);
      parts.push(Buffer.from(part));
    })(encodeFrames(5, FRAME.data, payload));
    expect(Math.max(...sizes)).toBeLessThanOrEqual(MAX_PAYLOAD);
    expect(sizes).toHaveLength(Math.max(1, Math.ceil(size / MAX_PAYLOAD)));
    expect(Buffer.concat(parts).equals(payload)).toBe(true);
  },
);

test('a payload that was handed on is not overwritten by what comes after', () => {
  const seen: Buffer[] = [];
  const parse = frameParser((_activation, _kind, payload) => seen.push(payload));
  const chunk = encodeFrames(1, FRAME.data, Buffer.from('first'));
  parse(chunk.subarray(0, 6));
  parse(chunk.subarray(6));
  parse(encodeFrames(1, FRAME.data, Buffer.from('other')));
  expect(seen.map(String)).toEqual(['first', 'other']);
});

test('what is no frame is refused before its length is believed', () => {
  const header = (kind: number, length: number): Buffer => {
    const head = Buffer.alloc(9);
    head[4] = kind;
    head.writeUInt32BE(length, 5);
    return head;
  };
  for (const bad of [header(8, 0), header(255, 0), header(0, MAX_PAYLOAD + 1), header(0, 2 ** 32 - 1)])
    expect(() => frameParser(() => undefined)(bad)).toThrow(/not a frame/);
  expect(() => frameParser(() => undefined)(Buffer.from('Traceback (most recent call last)'))).toThrow(/not a frame/);
});

test('lines arrive as they were sent, with bodies that nobody has read', () => {
  const head = fc.dictionary(fc.string(), fc.oneof(fc.string(), fc.integer(), fc.constant(null)), { maxKeys: 4 });
  const body = fc.option(
    fc.json().map((each) => Buffer.from(each)),
    { nil: undefined },
  );
  fc.assert(
    fc.property(fc.array(fc.tuple(head, body), { maxLength: 8 }), cuts, (lines, at) => {
      const stream = Buffer.concat(lines.map(([each, raw]) => encodeLine(each, raw)));
      const seen: Line[] = [];
      const parse = lineParser((line) => seen.push({ head: line.head, body: line.body && Buffer.from(line.body) }));
      for (const chunk of chunked(stream, at)) parse(chunk);
      expect(seen.map((line) => [JSON.stringify(line.head), line.body?.toString()])).toEqual(
        lines.map(([each, raw]) => [JSON.stringify(each), raw?.toString()]),
      );
    }),
  );
});

test('a body with line ends and tabs between its tokens stays on its line and means the same', () => {
  const seen: Line[] = [];
  lineParser((line) => seen.push(line))(
    encodeLine({ id: 1 }, Buffer.from('{\n\t"a": "b\\n\\t",\r\n"big": 9007199254740993}\n')),
  );
  expect(seen).toHaveLength(1);
  expect(seen[0]?.body?.toString()).toContain('9007199254740993');
  expect(JSON.parse(seen[0]?.body?.toString() ?? '')).toMatchObject({ a: 'b\n\t' });
});

test('an empty body is a body', () => {
  const seen: Line[] = [];
  lineParser((line) => seen.push(line))(Buffer.concat([encodeLine({ id: 1 }, Buffer.alloc(0)), encodeLine({ id: 2 })]));
  expect(seen.map(({ body }) => body?.length)).toEqual([0, undefined]);
});

test('a line over its bound is refused, before its end is seen', () => {
  const parse = lineParser(() => undefined, 100);
  expect(() => {
    for (let at = 0; at < 20; at++) parse(Buffer.alloc(10, 0x20));
  }).toThrow('a line is over 100 bytes');
});

test('lines under the bound may be any number', () => {
  let count = 0;
  const parse = lineParser(() => count++, 100);
  for (let at = 0; at < 50; at++) parse(encodeLine({ op: 'event', at }));
  expect(count).toBe(50);
});

test.each(['\n', 'x\n', '[]\n', '7\n', 'null\n', '"x"\n', '{\n', '\t{}\n'])('the line %j is refused', (line) => {
  expect(() => lineParser(() => undefined)(Buffer.from(line))).toThrow(Error);
});
