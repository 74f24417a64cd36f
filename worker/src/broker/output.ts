/** Share of the cap that the head gets; the tail, where errors stand, gets the rest. */
const HEAD_SHARE = 0.4;
/** Longer than any end marker with its path. */
const WINDOW_BYTES = 8192;

/**
 * The output of one command, within a bound: its head and its tail, with the true byte count; and the end marker that our
 * wrapper prints, found wherever the chunks were cut.
 */
export class CommandOutput {
  readonly #marker: Buffer;
  readonly #headCap: number;
  readonly #tailCap: number;
  readonly #head: Buffer[] = [];
  #headBytes = 0;
  #tail: Buffer[] = [];
  #tailBytes = 0;
  #window: Buffer = Buffer.alloc(0);
  #total = 0;
  #end: { readonly code: number; readonly cwd: string; readonly at: number } | undefined;

  constructor(marker: string, cap: number) {
    this.#marker = Buffer.from(`\n${marker}`);
    this.#headCap = Math.floor(cap * HEAD_SHARE);
    this.#tailCap = cap - this.#headCap;
  }

  /** Set once the marker is complete. */
  get end(): { readonly code: number; readonly cwd: string } | undefined {
    return this.#end;
  }

  push(chunk: Buffer): void {
    if (this.#end !== undefined) return;
    const seen = Buffer.concat([this.#window, chunk]);
    const start = this.#total - this.#window.length;
    this.#total += chunk.length;
    this.#keep(chunk);
    this.#window = seen.subarray(Math.max(0, seen.length - WINDOW_BYTES));
    // A background child may write on behind the marker, and the command may print one that is none.
    for (let from = seen.indexOf(this.#marker); from >= 0; from = seen.indexOf(this.#marker, from + 1)) {
      const after = from + this.#marker.length;
      const match = /^(\d{1,3}):([^\n]*)\n/.exec(seen.subarray(after, after + WINDOW_BYTES).toString());
      if (match === null) continue;
      this.#end = { code: Number(match[1]), cwd: match[2] ?? '', at: start + from };
      return;
    }
  }

  /** Bytes that the command wrote, the marker not counted. */
  get bytes(): number {
    return this.#end?.at ?? this.#total;
  }

  /** What was kept, as text; bytes that are not UTF-8 become U+FFFD, and a cut never splits a character. */
  text(): string {
    const head = Buffer.concat(this.#head).subarray(0, this.bytes);
    const kept = Buffer.concat(this.#tail);
    const before = kept.subarray(0, Math.max(0, this.bytes - (this.#total - kept.length)));
    if (head.length + before.length >= this.bytes && before.length <= this.#tailCap)
      return Buffer.concat([head, before]).toString();
    const tail = before.subarray(Math.max(0, before.length - this.#tailCap));
    const omitted = this.bytes - head.length - tail.length;
    return `${wholeHead(head)}\n\n... [OUTPUT TRUNCATED - ${omitted} bytes omitted out of ${this.bytes}] ...\n\n${wholeTail(tail)}`;
  }

  #keep(chunk: Buffer): void {
    const part = chunk.subarray(0, this.#headCap - this.#headBytes);
    if (part.length > 0) {
      this.#head.push(Buffer.from(part));
      this.#headBytes += part.length;
    }
    const rest = chunk.subarray(part.length);
    if (rest.length === 0) return;
    this.#tail.push(Buffer.from(rest));
    this.#tailBytes += rest.length;
    // Twice what is wanted before it is cut back, so that a flood is not copied each time. What a background child wrote
    // behind the marker, in the chunk that ends the command, must not push out what stands before it.
    const wanted = this.#tailCap + WINDOW_BYTES + chunk.length;
    if (this.#tailBytes <= 2 * wanted) return;
    this.#tail = [Buffer.from(Buffer.concat(this.#tail).subarray(-wanted))];
    this.#tailBytes = wanted;
  }
}

const isContinuation = (byte: number | undefined): boolean => byte !== undefined && (byte & 0xc0) === 0x80;

function wholeHead(head: Buffer): string {
  let end = head.length;
  while (end > 0 && head.length - end < 3 && isContinuation(head[end - 1])) end--;
  const lead = head[end - 1];
  const needs = lead === undefined || lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return head.subarray(0, end - 1 + needs <= head.length ? head.length : Math.max(0, end - 1)).toString();
}

function wholeTail(tail: Buffer): string {
  let start = 0;
  while (start < 3 && isContinuation(tail[start])) start++;
  return tail.subarray(start).toString();
}
