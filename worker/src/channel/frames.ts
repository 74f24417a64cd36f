/**
 * The bytes between worker and runner host: mux frames that carry, per activation, a stream of lines. The contract is
 * `worker/runner/PROTOCOL.md`.
 */

export const FRAME = { data: 0, open: 1, kill: 2, exit: 3, credit: 4, ping: 5, pong: 6, ready: 7 } as const;

export const MAX_PAYLOAD = 65_536;
const HEADER_BYTES = 9;
const LAST_KIND = FRAME.ready;
/** A longer line ends its activation: the runner is broken, or taken over. */
const MAX_LINE_BYTES = 32 * 1024 * 1024;
const LF = 10;
const TAB = 9;

function header(activation: number, kind: number, length: number): Buffer {
  const bytes = Buffer.allocUnsafe(HEADER_BYTES);
  bytes.writeUInt32BE(activation, 0);
  bytes[4] = kind;
  bytes.writeUInt32BE(length, 5);
  return bytes;
}

/** Frames of one message, cut where the payload is longer than a frame may be. */
export function encodeFrames(activation: number, kind: number, payload: Uint8Array = new Uint8Array()): Buffer {
  const parts: Uint8Array[] = [];
  for (let at = 0; at === 0 || at < payload.length; at += MAX_PAYLOAD) {
    const slice = payload.subarray(at, at + MAX_PAYLOAD);
    parts.push(header(activation, kind, slice.length), slice);
  }
  return Buffer.concat(parts);
}

export type FrameListener = (activation: number, kind: number, payload: Buffer) => void;

/** An incremental parser, linear in its input. @throws Error on bytes that are no frame; the stream is useless then */
export function frameParser(onFrame: FrameListener): (chunk: Buffer) => void {
  let pending: Buffer = Buffer.alloc(0);
  return (chunk) => {
    let bytes = pending.length === 0 ? chunk : Buffer.concat([pending, chunk]);
    while (bytes.length >= HEADER_BYTES) {
      const kind = bytes[4] ?? LAST_KIND + 1;
      const length = bytes.readUInt32BE(5);
      if (kind > LAST_KIND || length > MAX_PAYLOAD) throw new Error(`not a frame: kind ${kind}, ${length} bytes`);
      if (bytes.length < HEADER_BYTES + length) break;
      onFrame(bytes.readUInt32BE(0), kind, bytes.subarray(HEADER_BYTES, HEADER_BYTES + length));
      bytes = bytes.subarray(HEADER_BYTES + length);
    }
    // At most one frame is ever pending, so the copy stays bounded.
    pending = Buffer.from(bytes);
  };
}

/** One line of an activation: a small JSON head, and raw JSON bytes that nobody has touched. */
export interface Line {
  readonly head: Readonly<Record<string, unknown>>;
  readonly body: Buffer | undefined;
}

export function encodeLine(head: object, body?: Uint8Array): Buffer {
  const text = Buffer.from(JSON.stringify(head));
  return body === undefined
    ? Buffer.concat([text, Buffer.of(LF)])
    : Buffer.concat([text, Buffer.of(TAB), singleLine(body), Buffer.of(LF)]);
}

/** JSON bytes on one line. Raw line ends and tabs occur outside strings only, where a space means the same. */
function singleLine(body: Uint8Array): Uint8Array {
  if (!body.includes(LF) && !body.includes(TAB)) return body;
  return body.map((byte) => (byte === LF || byte === TAB ? 32 : byte));
}

function decodeLine(line: Buffer): Line {
  const tab = line.indexOf(TAB);
  const head: unknown = JSON.parse((tab < 0 ? line : line.subarray(0, tab)).toString());
  if (typeof head !== 'object' || head === null || Array.isArray(head)) throw new Error('a line is not a JSON object');
  return { head: head as Record<string, unknown>, body: tab < 0 ? undefined : line.subarray(tab + 1) };
}

/** Lines out of an activation's byte stream. @throws Error on a line that is too long or not JSON */
export function lineParser(onLine: (line: Line) => void, maxBytes = MAX_LINE_BYTES): (chunk: Buffer) => void {
  let parts: Buffer[] = [];
  let size = 0;
  return (chunk) => {
    let start = 0;
    for (let end = chunk.indexOf(LF); end >= 0; end = chunk.indexOf(LF, start)) {
      parts.push(chunk.subarray(start, end));
      const line = parts.length === 1 && parts[0] !== undefined ? parts[0] : Buffer.concat(parts);
      parts = [];
      size = 0;
      start = end + 1;
      onLine(decodeLine(line));
    }
    if (start === chunk.length) return;
    // A copy: a slice would keep the whole chunk alive while the line is unfinished.
    parts.push(Buffer.from(chunk.subarray(start)));
    size += chunk.length - start;
    if (size > maxBytes) throw new Error(`a line is over ${maxBytes} bytes`);
  };
}
