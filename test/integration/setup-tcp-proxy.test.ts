import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { startTcpProxy, type TcpProxy } from '../setup/tcp-proxy.ts';

let dir: string;
let echo: Server;
let proxy: TcpProxy;
beforeEach(async () => {
  dir = await mkdtemp(path.join(tmpdir(), 'fleet-proxy-test-'));
  const socket = path.join(dir, 'echo.sock');
  echo = createServer({ allowHalfOpen: true }, (client) => client.on('error', () => undefined).pipe(client));
  echo.listen(socket);
  await once(echo, 'listening');
  proxy = await startTcpProxy({ path: socket });
});
afterEach(async () => {
  await proxy.stop();
  echo.close();
  await rm(dir, { recursive: true, force: true });
});

/** Also after an error, which a reset is. */
const closed = async (socket: Socket): Promise<void> =>
  await new Promise((resolve) => {
    if (socket.closed) resolve();
    else socket.once('close', () => resolve());
  });

async function open(): Promise<{ readonly socket: Socket; readonly text: () => string }> {
  let text = '';
  const socket = connect(proxy.port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.setEncoding('utf8').on('data', (chunk: string) => (text += chunk));
  await once(socket, 'connect');
  return { socket, text: () => text };
}

test('passes data both ways to a unix socket, and an end of input before the answer has come', async () => {
  const { socket, text } = await open();
  socket.end('hello');
  await closed(socket);
  expect(text()).toBe('hello');
});

test('cut resets connections and refuses new ones until it is up again', async () => {
  const { socket } = await open();
  const gone = closed(socket);
  proxy.cut();
  await gone;
  const refused = await open();
  await closed(refused.socket);
  proxy.up();
  const { socket: again, text } = await open();
  again.write('back');
  await expect.poll(text).toBe('back');
});

test('a hole swallows data without a word, and its connections are reset when it is up again', async () => {
  const { socket, text } = await open();
  socket.write('before');
  await expect.poll(text).toBe('before');
  proxy.hole();
  const silent = await open();
  silent.socket.write('into the hole');
  socket.write('this too');
  const gone = [closed(socket), closed(silent.socket)];
  proxy.up();
  await Promise.all(gone);
  expect([text(), silent.text()]).toEqual(['before', '']);
});

test('a delay holds data back and keeps its order', async () => {
  const { socket, text } = await open();
  proxy.delay(100);
  const sent = performance.now();
  socket.write('one ');
  proxy.delay(0);
  socket.write('two');
  await expect.poll(text).toBe('one two');
  proxy.delay(100);
  socket.write('!');
  await expect.poll(text).toBe('one two!');
  expect(performance.now() - sent).toBeGreaterThanOrEqual(190);
});
