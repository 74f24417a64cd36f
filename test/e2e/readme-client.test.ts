import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { expect, inject, test } from 'vitest';
import { startFleet } from '../setup/fleet.ts';
import { ROOT, startProgram } from '../setup/processes.ts';

test('the client example of the README runs as it stands, but for addresses and image', async () => {
  await using fleet = await startFleet({ redisUrl: inject('redisUrl') });
  const readme = readFileSync(path.join(ROOT, 'README.md'), 'utf8');
  const [, example = ''] = /```ts\n([\s\S]*?)```/.exec(readme) ?? [];
  const program = example
    .replace("redisUrl: 'redis://127.0.0.1:6379'", `redisUrl: '${inject('redisUrl')}', fleetId: '${fleet.id}'`)
    .replace("image: 'debian:12'", "provider: 'stub', image: 'none'")
    .replace('http://model-server:8000/v1', fleet.model.url)
    .replace("name: 'my-model'", "name: 'echo'")
    .replace("argv: ['git', 'diff']", "argv: ['echo', 'a patch']");
  const file = path.join(ROOT, '.cache', `readme-${process.pid}.ts`);
  writeFileSync(file, program);
  await using run = startProgram(path.relative(ROOT, file), []);
  expect(await run.exited, run.output()).toBe(0);
  expect(run.output()).toContain('ok done Make the failing test');
  expect(run.output()).toContain('a patch');
});
