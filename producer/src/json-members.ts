/** One member of a JSON object, as its text has it. */
export interface Member {
  readonly key: string;
  /** The value's own text: numbers keep their digits. */
  readonly value: string;
  /** `"key": value`. */
  readonly text: string;
}

/**
 * The top-level members of a JSON object, without reading their values: a number of 19 digits, 1e400 and -0.0 stay what they
 * are. Of equal keys the last one counts, as for every reader.
 *
 * @param json text of an object that `JSON.parse` accepts
 */
export function membersOf(json: string): Member[] {
  const members = new Map<string, Member>();
  let at = json.indexOf('{') + 1;
  for (;;) {
    const start = json.indexOf('"', at);
    const end = valueEnd(json, at);
    if (start === -1 || start >= end) return [...members.values()];
    const keyEnd = stringEnd(json, start);
    const key = JSON.parse(json.slice(start, keyEnd)) as string;
    const value = json.slice(json.indexOf(':', keyEnd) + 1, end).trim();
    members.delete(key);
    members.set(key, { key, value, text: json.slice(start, end).trim() });
    at = end + 1;
  }
}

/** Index behind the closing quote of the string that begins at `start`. */
function stringEnd(json: string, start: number): number {
  let at = start + 1;
  for (;;) {
    const quote = json.indexOf('"', at);
    if (quote === -1) return json.length;
    let slashes = quote;
    while (json[slashes - 1] === '\\') slashes--;
    if ((quote - slashes) % 2 === 0) return quote + 1;
    at = quote + 1;
  }
}

/** Index of the comma or brace that ends the member at `from`. */
function valueEnd(json: string, from: number): number {
  const token = /["{}[\],]/g;
  let depth = 0;
  token.lastIndex = from;
  for (let found = token.exec(json); found !== null; found = token.exec(json)) {
    const [mark] = found;
    if (mark === '"') token.lastIndex = stringEnd(json, found.index);
    else if (mark === '{' || mark === '[') depth++;
    else if (depth === 0) return found.index;
    else if (mark !== ',') depth--;
  }
  return json.length;
}
