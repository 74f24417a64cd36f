import fc from 'fast-check';
import { expect, test } from 'vitest';
import { CommandOutput } from '@hermes-fleet/worker/broker/output';

const MARKER = '__HF_0123456789__';
const end = (code: number, cwd = '/w'): string => `\n${MARKER}${code}:${cwd}\n`;

function outputOf(cap: number, ...chunks: readonly (string | Buffer)[]): CommandOutput {
  const output = new CommandOutput(MARKER, cap);
  for (const chunk of chunks) output.push(Buffer.from(chunk));
  return output;
}

/** Head and tail of a cut text, and the numbers between them. */
function cutOf(text: string): { head: string; tail: string; omitted: number; total: number } {
  const match = /^([^]*)\n\n\.\.\. \[OUTPUT TRUNCATED - (\d+) bytes omitted out of (\d+)\] \.\.\.\n\n([^]*)$/.exec(
    text,
  );
  if (match === null) throw new Error(`not cut: ${text.slice(0, 80)}`);
  return { head: match[1] ?? '', tail: match[4] ?? '', omitted: Number(match[2]), total: Number(match[3]) };
}

test('the end marker is found wherever the chunks are cut', () => {
  const whole = Buffer.from(`some output${end(7, '/a dir')}`);
  for (let first = 0; first <= whole.length; first++)
    for (const second of [first, first + 1, first + 5].map((at) => Math.min(at, whole.length))) {
      const output = outputOf(1000, whole.subarray(0, first), whole.subarray(first, second), whole.subarray(second));
      expect(output.end).toMatchObject({ code: 7, cwd: '/a dir' });
      expect([output.text(), output.bytes]).toEqual(['some output', 11]);
    }
});

test('there is no end before the marker is whole', () => {
  const output = outputOf(1000, `x\n${MARKER}0:/w`);
  expect(output.end).toBeUndefined();
  output.push(Buffer.from('\n'));
  expect(output.end).toMatchObject({ code: 0, cwd: '/w' });
});

test('markers that are none stay in the output', () => {
  const fakes = [`${MARKER}0:/w\n`, `\n${MARKER}x:/w\n`, `\n${MARKER}\n`, `\n${MARKER.slice(0, -1)}0:/\n`];
  for (const fake of fakes) {
    const output = outputOf(10_000, fake, 'more');
    expect(output.end).toBeUndefined();
    output.push(Buffer.from(end(3)));
    expect(output.end).toMatchObject({ code: 3 });
    expect(output.text()).toBe(`${fake}more`);
  }
});

test('a marker that is none, behind the true one, does not hide it', () => {
  const output = outputOf(10_000, `x${end(0)}\n${MARKER}never:\n`);
  expect(output.end).toMatchObject({ code: 0 });
  expect(output.text()).toBe('x');
});

test('what a background child writes behind the marker is no output, however much it is', () => {
  const output = outputOf(1000, `x${end(0)}${'flood '.repeat(20_000)}`, 'more');
  expect(output.end).toMatchObject({ code: 0 });
  expect([output.text(), output.bytes]).toEqual(['x', 1]);
});

test('a flood in the chunk that ends the command does not push out its tail', () => {
  const before = 'b'.repeat(5000);
  const output = outputOf(1000, before, `the last words${end(1)}${'flood '.repeat(20_000)}`);
  expect(cutOf(output.text())).toMatchObject({ total: 5014 });
  expect(cutOf(output.text()).tail).toMatch(/b{5,}the last words$/);
});

test('at the cap nothing is cut, and one byte above it something is', () => {
  for (const cap of [10, 1000, 50_000]) {
    expect(outputOf(cap, 'x'.repeat(cap), end(0)).text()).toBe('x'.repeat(cap));
    const cut = cutOf(outputOf(cap, 'x'.repeat(cap + 1), end(0)).text());
    expect(cut).toMatchObject({ omitted: 1, total: cap + 1 });
    expect(cut.head.length + cut.tail.length).toBe(cap);
  }
});

test('of a longer output head and tail are kept, whatever the chunks were', () => {
  const chunks = fc.array(fc.string({ unit: 'binary', minLength: 1, maxLength: 400 }), { maxLength: 60 });
  fc.assert(
    fc.property(chunks, fc.integer({ min: 1, max: 2000 }), fc.boolean(), (texts, cap, hasEnd) => {
      const whole = Buffer.from(texts.join('')).toString();
      fc.pre(!whole.includes('OUTPUT TRUNCATED'));
      const size = Buffer.byteLength(whole);
      const output = outputOf(cap, ...texts.map((each) => Buffer.from(each)), ...(hasEnd ? [end(0)] : []));
      expect(output.bytes).toBe(Buffer.byteLength(texts.map((each) => Buffer.from(each).toString()).join('')));
      if (output.bytes !== size) return;
      const text = output.text();
      if (size <= cap) expect(text).toBe(whole);
      else {
        const { head, tail, total } = cutOf(text);
        expect([whole.startsWith(head), whole.endsWith(tail), total]).toEqual([true, true, size]);
        expect(Buffer.byteLength(head) + Buffer.byteLength(tail)).toBeLessThanOrEqual(cap);
        expect(Buffer.byteLength(head) + Buffer.byteLength(tail)).toBeGreaterThanOrEqual(cap - 6);
      }
    }),
  );
});

test.each(['é', '漢', '🙂'])('a cut never splits %s', (character) => {
  for (let cap = 1; cap < 40; cap++) expect(outputOf(cap, character.repeat(50)).text()).not.toContain('\uFFFD');
});

test('bytes that are not UTF-8 become U+FFFD, and NUL stays', () => {
  expect(outputOf(1000, Buffer.from([0x61, 0xff, 0x00, 0xe9, 0x62]), end(0)).text()).toBe('a\uFFFD\0\uFFFDb');
  for (let cap = 1; cap < 20; cap++) expect(outputOf(cap, Buffer.alloc(100, 0x80)).text()).toContain('TRUNCATED');
});

test('a quarter of a gigabyte of output takes no more memory than the cap, and are counted', () => {
  const chunk = Buffer.alloc(64 * 1024, 'y');
  const output = new CommandOutput(MARKER, 50_000);
  const before = process.memoryUsage().arrayBuffers;
  for (let at = 0; at < 4096; at++) output.push(chunk);
  output.push(Buffer.from(`last words${end(0)}`));
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(200 * 1024 * 1024);
  expect(output.bytes).toBe(2 ** 28 + 10);
  const { tail, total } = cutOf(output.text());
  expect([tail.endsWith('ylast words'), total]).toEqual([true, 2 ** 28 + 10]);
}, 60_000);

test('a flood of single bytes is taken in linear time', () => {
  const output = new CommandOutput(MARKER, 50_000);
  const byte = Buffer.from('z');
  for (let at = 0; at < 40_000; at++) output.push(byte);
  expect(output.bytes).toBe(40_000);
}, 20_000);
