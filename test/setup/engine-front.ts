import { mkdtemp, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';

const ENGINE = '/var/run/docker.sock';

/** What a pull answers: a status and a body, cut off before its end or not. */
export interface PullAnswer {
  readonly status: number;
  readonly body: string;
  readonly isCut?: boolean;
  /** How long the registry is about it. */
  readonly afterMs?: number;
}

export interface EngineFront extends AsyncDisposable {
  readonly socketPath: string;
  readonly pulls: () => number;
}

/** The real engine behind a socket of our own, but for pulls: those get the given answer, so that no registry is asked. */
export async function engineWithPulls({ status, body, isCut = false, afterMs = 0 }: PullAnswer): Promise<EngineFront> {
  let pulls = 0;
  const server = createServer((incoming: IncomingMessage, response: ServerResponse) => {
    const { method = 'GET', url = '/', headers } = incoming;
    if (!url.includes('/images/create')) {
      const onward = request({ socketPath: ENGINE, method, path: url, headers }, (reply) => {
        response.writeHead(reply.statusCode ?? 500, reply.headers);
        reply.pipe(response);
      });
      incoming.pipe(onward);
      return;
    }
    pulls++;
    setTimeout(() => {
      response.writeHead(status, { 'content-type': 'application/json' });
      response.write(body, () => (isCut ? response.destroy() : response.end()));
    }, afterMs);
  });
  const folder = await mkdtemp(path.join(tmpdir(), 'fleet-engine-'));
  const socketPath = path.join(folder, 'engine.sock');
  await new Promise<void>((resolve) => void server.listen(socketPath, resolve));
  return {
    socketPath,
    pulls: () => pulls,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      await rm(folder, { recursive: true, force: true });
    },
  };
}
