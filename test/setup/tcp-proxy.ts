import { once } from 'node:events';
import { connect, createServer, type NetConnectOpts, type Socket } from 'node:net';

export interface TcpProxy extends AsyncDisposable {
  readonly port: number;
  /** Resets all connections and refuses new ones. */
  cut(): void;
  /** Nothing arrives any more and nothing is refused, as behind a dead router. */
  hole(): void;
  /** Each piece of data is that much later, both ways. */
  delay(ms: number): void;
  /** Lets everything through again. Connections that went through an outage are reset: they have lost data. */
  up(): void;
  stop(): Promise<void>;
}

interface Pair {
  readonly client: Socket;
  readonly upstream: Socket;
}

/**
 * A TCP proxy in front of a server, so that a test can take the network away from under its clients. Listens on
 * 127.0.0.1.
 *
 * @param upstream host and port, or the path of a unix socket
 */
export async function startTcpProxy(
  upstream: NetConnectOpts,
  options: { readonly port?: number } = {},
): Promise<TcpProxy> {
  const pairs = new Set<Pair>();
  let mode: 'up' | 'cut' | 'hole' = 'up';
  let delayMs = 0;

  const forward = (from: Socket, to: Socket): void => {
    let ready = 0;
    const later = (act: () => void): void => {
      // A shorter delay must not let data overtake what was sent before.
      ready = Math.max(ready, performance.now() + delayMs);
      const wait = ready - performance.now();
      if (wait <= 0) act();
      else setTimeout(act, wait);
    };
    from.on('data', (data) => {
      if (mode === 'hole') return;
      later(() => {
        if (to.writable && !to.write(data)) from.pause();
      });
    });
    from.on('end', () => later(() => to.end()));
    to.on('drain', () => from.resume());
  };
  const reset = (): void => {
    for (const { client, upstream: server } of pairs) {
      client.destroy();
      server.destroy();
    }
  };

  // Half-open: Docker's attach goes on answering when its input has ended.
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (client) => {
    client.on('error', () => undefined);
    if (mode === 'cut') return client.destroy();
    const pair = { client, upstream: connect({ ...upstream, allowHalfOpen: true }) };
    pairs.add(pair);
    const end = (): void => {
      pairs.delete(pair);
      client.destroy();
      pair.upstream.destroy();
    };
    client.on('close', end);
    pair.upstream.on('error', end).on('close', end);
    forward(client, pair.upstream);
    forward(pair.upstream, client);
    client.resume();
    return undefined;
  });
  server.listen(options.port ?? 0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('a TCP server has no port');

  const stop = async (): Promise<void> => {
    if (!server.listening) return;
    const closed = once(server, 'close');
    server.close();
    reset();
    await closed;
  };
  return {
    port: address.port,
    cut: () => {
      mode = 'cut';
      reset();
    },
    hole: () => (mode = 'hole'),
    delay: (ms) => (delayMs = ms),
    up: () => {
      if (mode === 'hole') reset();
      mode = 'up';
    },
    stop,
    [Symbol.asyncDispose]: stop,
  };
}
