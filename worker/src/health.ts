import { createServer, type Server } from 'node:http';

export interface HealthCheck {
  readonly name: string;
  /** Undefined when well, else the reason in one clause. */
  readonly problem: () => string | undefined;
}

/** `/livez`: the event loop and the fetch loop work. `/readyz`: Redis and the engines answer too. On 127.0.0.1 only. */
export function serveHealth(
  port: number,
  checks: { readonly live: readonly HealthCheck[]; readonly ready: readonly HealthCheck[] },
): Server {
  const server = createServer((request, response) => {
    const asked =
      request.url === '/livez'
        ? checks.live
        : request.url === '/readyz'
          ? [...checks.live, ...checks.ready]
          : undefined;
    if (asked === undefined) {
      response.writeHead(404).end();
      return;
    }
    const problems = asked.flatMap(({ name, problem }) => {
      const reason = problem();
      return reason === undefined ? [] : [{ check: name, reason }];
    });
    response.writeHead(problems.length === 0 ? 200 : 503, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ ok: problems.length === 0, problems }));
  });
  server.listen(port, '127.0.0.1');
  return server;
}
