export {
  FleetError,
  type CommandResult,
  type ActivationBody,
  type SeedBody,
  type CloseBody,
} from '@hermes-fleet/shared';
export { FleetClient, type FleetClientOptions, type WaitOptions } from './client.ts';
export type { Plan } from './plan.ts';
export type { Cancelled, Submitted } from './submission.ts';
export type { ResultEntry, ResultsOptions } from './results.ts';
export { answerOf, Session, type ActivationRequest } from './session.ts';
export type { SessionStatus } from './status.ts';
