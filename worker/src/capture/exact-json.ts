import { isLosslessNumber, LosslessNumber, parse, stringify } from 'lossless-json';

/**
 * JSON that keeps every number as it was written: 20-digit ids, 1e400, 1.0, -0. Python writes bare NaN and Infinity; they
 * pass the parser as marked numbers and come out as they were.
 */
const TOKEN = /"|\\.|-?\b(?:NaN|Infinity)\b/g;
/** A number, or the first letter of what is none in JSON. */
const NUMBER = /-?\d[\d.eE+-]*|-?[NI]/g;
const MARK: Readonly<Record<string, string>> = {
  NaN: '9e99990001',
  Infinity: '9e99990002',
  '-Infinity': '-9e99990002',
};
const UNMARK: ReadonlyMap<string, string> = new Map(Object.entries(MARK).map(([name, mark]) => [mark, name]));

/** A number is JavaScript's own where that writes it out as it was, else the text that stood there. */
export type ExactValue =
  | null
  | boolean
  | string
  | number
  | LosslessNumber
  | ExactValue[]
  | { [key: string]: ExactValue };
export type ExactObject = { [key: string]: ExactValue };

const PARSING = {
  parseNumber: (text: string): LosslessNumber => {
    const bare = UNMARK.get(text);
    const number = new LosslessNumber(bare === undefined ? text : '0');
    // The constructor takes finite numbers only; what is written out is `value`, whatever it is.
    if (bare !== undefined) number.value = bare;
    return number;
  },
  // As JSON.parse and Python do: the last one counts.
  onDuplicateKey: ({ newValue }: { readonly newValue: unknown }): unknown => newValue,
};

/** @throws SyntaxError */
export function parseExact(text: string): ExactValue {
  // Nearly every text; the other way takes some thirty times as long, measured on a reply of 12 MiB.
  if (hasPlainNumbers(text)) return JSON.parse(text) as ExactValue;
  return parse(/NaN|Infinity/.test(text) ? marked(text) : text, null, PARSING) as ExactValue;
}

/** Whether JavaScript's own numbers would come out as they are written. Looks at what stands between strings only. */
function hasPlainNumbers(text: string): boolean {
  for (let at = 0; at < text.length;) {
    const quote = text.indexOf('"', at);
    const end = quote < 0 ? text.length : quote;
    for (const [token] of text.slice(at, end).matchAll(NUMBER)) if (String(Number(token)) !== token) return false;
    at = quote < 0 ? end : endOfString(text, quote);
  }
  return true;
}

/** Place behind the string that begins at `open`. */
function endOfString(text: string, open: number): number {
  for (let quote = text.indexOf('"', open + 1); quote >= 0; quote = text.indexOf('"', quote + 1)) {
    let slashes = 0;
    while (text[quote - 1 - slashes] === '\\') slashes++;
    if (slashes % 2 === 0) return quote + 1;
  }
  return text.length;
}

/** Token by token: one pattern for a whole string overflows the stack where a string is megabytes long. */
function marked(text: string): string {
  let isInString = false;
  return text.replaceAll(TOKEN, (token) => {
    if (token === '"') isInString = !isInString;
    return isInString ? token : (MARK[token] ?? token);
  });
}

export function stringifyExact(value: ExactValue): string {
  return stringify(value) ?? 'null';
}

export function isExactObject(value: ExactValue | undefined): value is ExactObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !isLosslessNumber(value);
}

/** The number as JavaScript has it, or undefined where there is none. */
export function numberOf(value: ExactValue | undefined): number | undefined {
  if (typeof value === 'number') return value;
  return value instanceof LosslessNumber ? Number(value.value) : undefined;
}

export function textOf(value: ExactValue | undefined): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

const LONE_ESCAPE = /\\u[dD][89a-fA-F]/;

/** JSON text in which every half of a surrogate pair is U+FFFD, so that Python can encode what it reads. */
export function wellFormedJson(text: string): string {
  if (!LONE_ESCAPE.test(text)) return text;
  return text.replaceAll(
    /\\\\|\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}/g,
    (match, high?: string) => (match === '\\\\' || high !== undefined ? match : '\\ufffd'),
  );
}
