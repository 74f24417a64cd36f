import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  type ExactValue,
  isExactObject,
  numberOf,
  parseExact,
  stringifyExact,
  textOf,
  wellFormedJson,
} from '@hermes-fleet/worker/capture/exact-json';

/** JSON text of any value, with numbers that JavaScript cannot hold and the bare words that Python writes. */
const number = fc.oneof(
  fc.bigInt({ min: -(2n ** 70n), max: 2n ** 70n }).map(String),
  fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => JSON.stringify(value)),
  fc.constantFrom(
    'NaN',
    'Infinity',
    '-Infinity',
    '1e400',
    '-0',
    '-0.0',
    '1.0',
    '1E+2',
    '0.10',
    '9007199254740993',
    '1e-999',
  ),
);
const text = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.constantFrom('NaN', '-Infinity', '9e99990001', '"9e99990001"', '\\', '\uD800', '\uDC00x', '\u2028', '__proto__'),
);
const { value: json } = fc.letrec<{ value: string }>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    number,
    text.map((each) => JSON.stringify(each)),
    fc.constantFrom('null', 'true', 'false'),
    fc.array(tie('value'), { maxLength: 4 }).map((items) => `[${items.join(',')}]`),
    fc
      .uniqueArray(fc.tuple(text, tie('value')), { maxLength: 4, selector: ([name]) => name })
      .map((fields) => `{${fields.map(([name, each]) => `${JSON.stringify(name)}:${each}`).join(',')}}`),
  ),
}));

test('what was read is written as it was, whatever its numbers and texts are', () => {
  fc.assert(
    fc.property(json, (written) => {
      // Integer-like names change places in any JavaScript object; what is read again is what counts then.
      const once = stringifyExact(parseExact(written));
      expect(stringifyExact(parseExact(once))).toBe(once);
      if (!/"-?\d+"\s*:/.test(written)) expect(once).toBe(written);
    }),
    { numRuns: 500 },
  );
});

test.each([
  '[9007199254740993,-18446744073709551616,2512292042121000001]',
  '[NaN,Infinity,-Infinity,1e400,-0,-0.0,1.0,1E+2]',
  '{"NaN":NaN,"a":"NaN, -Infinity","b":"\\"NaN\\"","c":"\\\\"}',
  '["9e99990001","-9e99990002",[NaN]]',
  '[19e99990001,9e999900015,9e99990003]',
  '{"__proto__":{"a":1},"constructor":NaN}',
  '"\\ud800"',
])('%s is unchanged', (written) => {
  expect(stringifyExact(parseExact(written))).toBe(written);
});

test('numbers read as JavaScript has them, the bare ones too', () => {
  const values = parseExact('[1.5,NaN,Infinity,-Infinity,-0,1e400]') as ExactValue[];
  expect(values.map(numberOf)).toEqual([1.5, Number.NaN, Infinity, -Infinity, -0, Infinity]);
  for (const none of ['1', null, true, [], {}, undefined]) expect(numberOf(none)).toBeUndefined();
  expect(stringifyExact([7, 0.1])).toBe('[7,0.1]');
});

test('a number is no object, and only a text is a text', () => {
  expect(isExactObject(parseExact('{"isLosslessNumber":true}'))).toBe(true);
  for (const value of [parseExact('1'), parseExact('NaN'), null, [], 'x', undefined])
    expect(isExactObject(value)).toBe(false);
  expect(textOf(parseExact('"1"'))).toBe('1');
  expect(textOf(parseExact('1'))).toBeUndefined();
});

test('of equal names the last counts, as for every other reader', () => {
  expect(stringifyExact(parseExact('{"a":1,"b":2,"a":3}'))).toBe('{"a":3,"b":2}');
});

test.each(['', '{', 'nan', 'NaNa', '[1,]', '01', "{'a':1}", '1 2', '+Infinity'])('%j is no JSON', (written) => {
  expect(() => parseExact(written)).toThrow(SyntaxError);
});

test('a text of many megabytes beside a bare word is read', () => {
  const long = 'x\\n'.repeat(500_000);
  const written = `{"a":"${long}","b":NaN}`;
  expect(stringifyExact(parseExact(written)) === written).toBe(true);
});

test('halves of surrogate pairs become U+FFFD, and nothing else changes', () => {
  const cases: readonly (readonly [string, string])[] = [
    ['"\\ud83d\\ude42"', '"\\ud83d\\ude42"'],
    ['"\\uD83D\\uDE42"', '"\\uD83D\\uDE42"'],
    ['"\\ud83d"', '"\\ufffd"'],
    ['"\\ude42\\ud83d"', '"\\ufffd\\ufffd"'],
    ['"\\ud83d\\ud83d\\ude42"', '"\\ufffd\\ud83d\\ude42"'],
    ['"\\\\ud83d"', '"\\\\ud83d"'],
    ['"\\\\\\ud83d"', '"\\\\\\ufffd"'],
    ['"🙂 \\u00e9"', '"🙂 \\u00e9"'],
  ];
  for (const [given, wanted] of cases) expect(wellFormedJson(given)).toBe(wanted);
});

test('well-formed JSON reads as the same text with its halves replaced', () => {
  fc.assert(
    fc.property(text, (value) => {
      const read = JSON.parse(wellFormedJson(JSON.stringify(value))) as string;
      expect(read).toBe(Buffer.from(value, 'utf16le').toString('utf16le').replaceAll(HALVES, '\uFFFD'));
      expect(Buffer.from(read).toString()).toBe(read);
    }),
  );
});

const HALVES = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g;
