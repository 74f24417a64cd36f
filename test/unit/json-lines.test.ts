import { createReadStream } from 'node:fs';
import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { type Line, readLines } from '@hermes-fleet/producer/internal/json-lines';

async function linesOf(bytes: Uint8Array, cut = 7, maxBytes?: number): Promise<Line[]> {
  const chunks = Array.from({ length: Math.ceil(bytes.length / cut) }, (_, at) =>
    bytes.subarray(at * cut, (at + 1) * cut),
  );
  const lines: Line[] = [];
  for await (const line of readLines(chunks, maxBytes)) lines.push(line);
  return lines;
}

const text = (lines: readonly Line[]): (string | undefined)[] =>
  lines.map((line) => ('text' in line ? line.text : undefined));

test('lines end at LF alone, however the bytes are cut into chunks', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(
        fc.string({ unit: 'grapheme' }).map((line) => line.replaceAll(/[\n\r\u{feff}]/gu, '')),
        { minLength: 1 },
      ),
      fc.integer({ min: 1, max: 20 }),
      fc.constantFrom('\n', '\r\n'),
      fc.boolean(),
      async (lines, cut, end, hasBom) => {
        const bytes = Buffer.from(`${hasBom ? '\u{feff}' : ''}${lines.map((line) => line + end).join('')}`);
        const read = await linesOf(bytes, cut);
        expect(text(read)).toEqual(lines);
        expect(read.map(({ number }) => number)).toEqual(lines.map((_, at) => at + 1));
      },
    ),
    { numRuns: 200 },
  );
});

test('separators of Unicode and a lone CR belong to their line', async () => {
  expect(text(await linesOf(Buffer.from('a\u{2028}b\u{2029}c\u{85}d\re\nf')))).toEqual([
    'a\u{2028}b\u{2029}c\u{85}d\re',
    'f',
  ]);
});

test('a last line without an end is a line, and no bytes are no line', async () => {
  expect(text(await linesOf(Buffer.from('a\nb')))).toEqual(['a', 'b']);
  expect(await linesOf(Buffer.from(''))).toEqual([]);
});

test('a line that is too long is named by its number, and those behind it are read', async () => {
  const lines = await linesOf(Buffer.from(`ok\n${'x'.repeat(50)}\nok too\n`), 3, 10);
  expect(lines).toEqual([
    { number: 1, text: 'ok' },
    { number: 2, error: 'is longer than 10 bytes' },
    { number: 3, text: 'ok too' },
  ]);
});

test('bytes that are no UTF-8 are an error and never a replacement character', async () => {
  const lines = await linesOf(Buffer.concat([Buffer.from('ok\n'), Buffer.from([0xe6, 0x0a]), Buffer.from('ok')]));
  expect(lines).toEqual([
    { number: 1, text: 'ok' },
    { number: 2, error: 'is not UTF-8' },
    { number: 3, text: 'ok' },
  ]);
});

test('a file with BOM, CRLF, blank lines and no last line end is read line by line', async () => {
  const lines: Line[] = [];
  for await (const line of readLines(createReadStream('test/data/bom_crlf_blank.jsonl') as AsyncIterable<Buffer>))
    lines.push(line);
  const rows = text(lines).filter((line) => line?.trim() !== '');
  expect(rows.map((row) => (JSON.parse(row ?? '') as { question_id: string }).question_id)).toEqual([
    'odd-00',
    'odd-01',
    'odd-02',
  ]);
});
