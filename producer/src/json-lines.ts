const LF = 0x0a;
const BOM = '\u{feff}';

/** Longest line that is read; a longer one is an error of its own, and the lines behind it are read on. */
export const MAX_LINE_BYTES = 64 * 1024 * 1024;

/** One line of a file, without its end. */
export type Line =
  | { readonly number: number; readonly text: string }
  /** What is wrong with its bytes. */
  | { readonly number: number; readonly error: string };

/**
 * Lines of a byte stream, numbered from 1. They end at LF and nowhere else: U+2028 and a lone CR belong to their line. A BOM
 * before the first line and a CR before an LF are taken away.
 */
export async function* readLines(
  bytes: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  maxBytes = MAX_LINE_BYTES,
): AsyncGenerator<Line> {
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let number = 1;
  let size = 0;
  let parts: Uint8Array[] = [];
  const take = (): Line => {
    const at = number++;
    const isTooLong = size > maxBytes;
    const whole = parts.length === 1 ? parts[0] : Buffer.concat(parts);
    parts = [];
    size = 0;
    if (isTooLong) return { number: at, error: `is longer than ${maxBytes} bytes` };
    try {
      const text = decoder.decode(whole);
      return { number: at, text: at === 1 && text.startsWith(BOM) ? text.slice(1) : text };
    } catch {
      return { number: at, error: 'is not UTF-8' };
    }
  };
  const add = (part: Uint8Array): void => {
    size += part.length;
    if (size > maxBytes) parts = [];
    else if (part.length > 0) parts.push(part);
  };
  for await (const chunk of bytes) {
    let from = 0;
    for (let end = chunk.indexOf(LF); end !== -1; end = chunk.indexOf(LF, from)) {
      add(chunk.subarray(from, end));
      from = end + 1;
      yield withoutCr(take());
    }
    add(chunk.subarray(from));
  }
  if (size > 0) yield withoutCr(take());
}

function withoutCr(line: Line): Line {
  return 'text' in line && line.text.endsWith('\r') ? { number: line.number, text: line.text.slice(0, -1) } : line;
}
