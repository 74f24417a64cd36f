import { test } from 'vitest';
import { requirementIds, type RequirementId } from '../requirements.ts';

const MOST_IDS = 3;

/** A test that shows that requirements are kept. What cites more than three shows none of them in particular. */
export function verifies(
  ids: RequirementId | readonly RequirementId[],
  name: string,
  run: () => void | Promise<void>,
  timeoutMs?: number,
): void {
  const cited = typeof ids === 'string' ? [ids] : ids;
  if (cited.length === 0 || cited.length > MOST_IDS) throw new Error(`"${name}" cites ${cited.length} requirements`);
  for (const id of cited)
    if (!requirementIds.has(id)) throw new Error(`"${name}" cites ${id}, which is no requirement`);
  test(`${name} [${cited.join(' ')}]`, run, timeoutMs);
}
