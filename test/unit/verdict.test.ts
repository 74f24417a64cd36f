import { FleetError } from '@hermes-fleet/shared';
import { trajectoryOf } from '@hermes-fleet/worker/hermes/trajectory';
import { verdictOf } from '@hermes-fleet/worker/hermes/verdict';
import { expect, test } from 'vitest';
import { RecordBuilder } from '../setup/journal-record.ts';

const facts = {
  end: { exit: { rc: 143, oom: false, detail: '' }, claim: undefined },
  trajectory: trajectoryOf(new RecordBuilder().record),
};
const limited = new FleetError('infra/model_rate_limited', 'answered 429');

test('time that runs out while the Model Server does not answer is its fault, and no limit of the agent', () => {
  const aborted = new FleetError('incomplete/wall_time', 'not done within 5 s');
  expect(verdictOf({ ...facts, aborted, modelFailure: undefined })).toMatchObject({
    class: 'incomplete',
    code: 'wall_time',
  });
  expect(verdictOf({ ...facts, aborted, modelFailure: limited })).toEqual({
    class: 'infra',
    code: 'model_rate_limited',
    message: 'answered 429; then not done within 5 s',
  });
});

test('a cancel and a used-up budget stand, whatever the Model Server does', () => {
  for (const aborted of [
    new FleetError('cancelled/by_caller', 'cancelled'),
    new FleetError('incomplete/max_model_calls', 'used up'),
  ])
    expect(verdictOf({ ...facts, aborted, modelFailure: limited })).toMatchObject({ code: aborted.shortCode });
});
