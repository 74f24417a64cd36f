import fc from 'fast-check';
import { expect, test } from 'vitest';
import { boundedJson, wellFormed } from '@hermes-fleet/worker/command';

const KIB = 1024;
const parse = (text: string): Record<string, unknown> => JSON.parse(text) as Record<string, unknown>;

test('a body within the bound is its JSON, to the byte', () => {
  const body = { complete: true, output: 'é'.repeat(100), none: undefined };
  const text = JSON.stringify(body);
  expect(boundedJson(body, Buffer.byteLength(text))).toBe(text);
  expect(boundedJson(body, Buffer.byteLength(text) - 1)).not.toBe(text);
});

test('of a larger body the longest texts are cut, and it says so', () => {
  const body = { complete: true, short: 'kept', long: 'x'.repeat(3_000_000), items: [{ text: 'y'.repeat(2_000_000) }] };
  const text = boundedJson(body, 500 * KIB);
  expect(Buffer.byteLength(text)).toBeLessThanOrEqual(500 * KIB);
  const cut = parse(text);
  expect(cut).toMatchObject({ complete: false, short: 'kept' });
  expect(cut['long']).toMatch(/^x+ \[cut: 3000000 characters\]$/);
});

test('token ids go as a whole, for half of them is worth nothing', () => {
  const ids = Array.from({ length: 300_000 }, (_, at) => at);
  const body = { output: [{ prompt_token_ids: ids, generation_log_probs: ids, arguments: '{}' }], others: [1, 2] };
  const cut = parse(boundedJson(body, 100 * KIB));
  expect(cut).toEqual({
    output: [{ prompt_token_ids: [], generation_log_probs: [], arguments: '{}' }],
    others: [1, 2],
    complete: false,
  });
});

test('a body of nothing but small parts is given up as a whole', () => {
  const body = { items: Array.from({ length: 10_000 }, (_, at) => ({ id: `item ${at}` })) };
  expect(parse(boundedJson(body, 10 * KIB))).toEqual({
    message: `the body was over ${10 * KIB} bytes, even without its long texts`,
    complete: false,
  });
});

test('a cut never leaves half of a surrogate pair', () => {
  for (const shift of ['', 'x']) {
    const cut = boundedJson({ text: shift + '🙂'.repeat(1_000_000) }, 100 * KIB);
    expect(cut).not.toMatch(/\\ud[89a-f]/i);
    expect(Buffer.byteLength(cut)).toBeLessThanOrEqual(100 * KIB);
  }
});

test('whatever the body is, the bound holds', () => {
  fc.assert(
    fc.property(
      fc.dictionary(fc.string(), fc.oneof(fc.string({ maxLength: 5000 }), fc.array(fc.integer()))),
      (body) => {
        expect(Buffer.byteLength(boundedJson(body, 2000))).toBeLessThanOrEqual(2000);
      },
    ),
  );
});

test('halves of surrogate pairs become U+FFFD', () => {
  expect(wellFormed('a\uD83D🙂\uDE42b')).toBe('a\uFFFD🙂\uFFFDb');
});
