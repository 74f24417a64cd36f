import { execFile } from 'node:child_process';
import path from 'node:path';
import { expect, test } from 'vitest';

const root = path.resolve(import.meta.dirname, '../..');
const LONGEST_MS = 240_000;

/** Runs one of our own tools. What it said is the message of the error when it finds something. */
function tool(name: string, ...args: readonly string[]): Promise<'clean'> {
  return new Promise((resolve, reject) => {
    const options = { cwd: root, timeout: LONGEST_MS - 5_000, maxBuffer: 64 * 1024 * 1024 };
    execFile(path.join(root, 'node_modules/.bin', name), args, options, (error, stdout, stderr) => {
      if (error === null) resolve('clean');
      else reject(new Error(`${name} ended with ${error.code ?? error.signal}:\n${stdout}${stderr}`));
    });
  });
}

test.each([
  ['the types hold', 'tsc', ['-b']],
  ['the linter finds nothing', 'oxlint', ['--type-aware', '.']],
  ['every file is formatted', 'oxfmt', ['--check', '.']],
  ['no file, export or dependency is unused', 'knip', ['--strict']],
])('%s', { timeout: LONGEST_MS }, async (_, name, args) => {
  expect(await tool(name, ...args)).toBe('clean');
});
