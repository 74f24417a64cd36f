import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test } from 'vitest';
import { type Due, REQUIREMENTS, requirementIds } from '../requirements.ts';

/** Issues of the project that are done. */
const DONE: readonly Due[] = ['A', 'B'];
const CALL = /\bverifies\(\s*(\[[^\]]*\]|'[^']*')/g;

function citedIn(folder: string): Map<string, string[]> {
  const cited = new Map<string, string[]>();
  for (const file of readdirSync(folder, { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.test.ts')) continue;
    for (const [, ids = ''] of readFileSync(path.join(folder, file), 'utf8').matchAll(CALL))
      for (const [, id = ''] of ids.matchAll(/'([^']*)'/g)) cited.set(id, [...(cited.get(id) ?? []), file]);
  }
  return cited;
}

const cited = citedIn(path.resolve(import.meta.dirname, '..'));

test('every requirement that is due is cited by a test', () => {
  const due = Object.entries(REQUIREMENTS).filter(([, requirement]) => DONE.includes(requirement.due));
  expect(due.map(([id]) => id).filter((id) => !cited.has(id))).toEqual([]);
});

test('tests cite requirements that exist', () => {
  expect([...cited.keys()].filter((id) => !requirementIds.has(id))).toEqual([]);
});
