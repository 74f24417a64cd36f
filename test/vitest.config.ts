import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { defineConfig, type TestProjectInlineConfiguration } from 'vitest/config';
import { ClosingLine } from './setup/closing-line.ts';
import { findRedisServer } from './setup/redis-server.ts';

const root = path.resolve(import.meta.dirname, '..');
const conditions = ['@hermes-fleet/source', 'node', 'import', 'default'];
const SECOND = 1000;

const docker = (...args: readonly string[]): boolean =>
  spawnSync('docker', args, { timeout: 10 * SECOND }).status === 0;

/** What a machine may lack: whether it is here, and how it is had. */
const redis = {
  isHere: findRedisServer() !== undefined,
  get: 'a Redis server (`npm run setup` brings one)',
};
const hermes = {
  isHere: existsSync(path.join(root, '.venv/bin/python')),
  get: 'the pinned Hermes in .venv (`npm run setup`)',
};
const engine = {
  isHere: docker('version'),
  get: 'a Docker engine that answers (on Debian: apt-get install docker.io mmdebstrap, then start dockerd)',
};
const image = {
  isHere: engine.isHere && docker('image', 'inspect', 'hermes-fleet-runner'),
  get: 'the runner image (`npm run setup -- --image`)',
};

interface Project {
  readonly name: string;
  readonly needs: readonly { readonly isHere: boolean; readonly get: string }[];
  readonly timeoutS: number;
  /** Files at a time. Those that start whole fleets would starve each other on two cores; those on the engine mostly wait. */
  readonly files?: number;
}

const projects: readonly Project[] = [
  { name: 'unit', needs: [], timeoutS: 10 },
  { name: 'integration', needs: [redis], timeoutS: 30 },
  { name: 'docker', needs: [redis, hermes, engine, image], timeoutS: 180, files: 3 },
  { name: 'e2e', needs: [redis, hermes], timeoutS: 180, files: 1 },
];

const missing = (project: Project): string[] => project.needs.filter((need) => !need.isHere).map((need) => need.get);

const leftOut = projects
  .filter((project) => missing(project).length > 0)
  .map((project) => ({ name: project.name, needs: missing(project) }));

const inline = ({ name, needs, timeoutS, files = 2 }: Project, order: number): TestProjectInlineConfiguration => ({
  extends: true,
  test: {
    name,
    include: [`test/${name}/**/*.test.ts`],
    globalSetup: needs.includes(redis) ? ['test/setup/redis.ts'] : [],
    testTimeout: timeoutS * SECOND,
    hookTimeout: timeoutS * SECOND,
    maxWorkers: files,
    sequence: { groupOrder: order },
  },
});

export default defineConfig({
  root,
  resolve: { conditions },
  ssr: { resolve: { conditions, externalConditions: conditions } },
  test: {
    restoreMocks: true,
    unstubEnvs: true,
    reporters: ['default', new ClosingLine(leftOut)],
    projects: projects.filter((project) => missing(project).length === 0).map(inline),
    coverage: { provider: 'v8', include: ['{shared,producer,worker}/src/**/*.ts'] },
  },
});
