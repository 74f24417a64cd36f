import { expect } from 'vitest';
import { ANSWER } from './attacks.ts';
import { callsIn, type HermesFleet, messagesIn, type Rollout } from './hermes-fleet.ts';

/** Generous for a loaded machine; what an attack costs is a few times its tools' own limit. */
const ATTACK_MS = 60_000;

/** The result says what the model said, call by call, and that it is the record. */
export function expectTrue(fleet: HermesFleet, { verdict, activation, items, close }: Rollout, name: string): void {
  expect(verdict, name).toBe('ok');
  expect(messagesIn(items), name).toEqual([ANSWER]);
  expect(activation.body, name).toMatchObject({ integrity: 'captured', integrity_notes: [], complete: true });
  const calls = fleet.model.callsOf(name);
  const asked = calls.flatMap(({ reply }) => (reply?.kind === 'completion' ? [reply.message] : []));
  expect(
    callsIn(items).map(({ arguments: args }) => args),
    name,
  ).toEqual(
    asked.flatMap(({ tool_calls: tools }) =>
      ((tools ?? []) as { function: { arguments: string } }[]).map((each) => each.function.arguments),
    ),
  );
  expect(activation.body?.counts, name).toMatchObject({ model_calls: calls.length, turns: calls.length });
  expect(activation.body?.timings_ms['total'], name).toBeLessThan(ATTACK_MS);
  expect(close, name).toMatchObject({ class: 'ok', body: { sandbox: 'removed' } });
}
