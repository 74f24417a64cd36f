export {
  parseActivate,
  parseClose,
  parseSeed,
  issuesOf,
  WIRE_VERSION,
  Activate,
  ActivationId,
  Close,
  Identity,
  ReplyTo,
  Seed,
  SessionId,
} from './commands.ts';
export type { ActivateInput, CloseInput, SeedInput } from './commands.ts';
export { Dispatcher, type Job, type JobData } from './dispatch.ts';
export { CommonEnvironment, milliseconds, readEnvironment } from './environment.ts';
export { boundary, FAILURES, FleetError, reasonOf, RESULT_CLASSES, verdictOf } from './failure.ts';
export type { FailureCode, Fault, FleetErrorOptions, ResultClass } from './failure.ts';
export { ANY_QUEUE, bodyDigest, engineQueue, Keys, newEngineQueue, newQueue, sessionKey } from './keys.ts';
export { ObservationBundle, ObservationGap, ObservationRecord } from './observation.ts';
export { checkRedis, connectRedis, isTemporary, patiently, redisAddress, type RedisFacts } from './redis.ts';
export { InputItem, OutputItem, ResponsesObject, ResponsesRequest, ResponsesUsage } from './responses.ts';
export {
  ActivationBody,
  CloseBody,
  COMMAND_KINDS,
  commandResult,
  Integrity,
  SeedBody,
  StoredResult,
} from './results.ts';
export type { CommandKind, CommandResult } from './results.ts';
export { Scripts, scriptSource } from './scripts.ts';
export { DEFAULT_TIMING } from './script-replies.ts';
export type {
  Address,
  BeginAnswer,
  CommandView,
  FinishAnswer,
  FinishOptions,
  MailboxTiming,
  Next,
  SubmitAnswer,
  SubmitCommand,
  SubmitOptions,
  Taken,
} from './script-replies.ts';
export {
  Budgets,
  Collect,
  HermesSpec,
  isBorrowed,
  sandboxUser,
  ModelSpec,
  type OwnedSandbox,
  SandboxSpec,
  Timeouts,
} from './session-spec.ts';
export { hermesServerName, isMcpGrant, type McpGrant, refusalOf, ToolAccess } from './tool-access.ts';
export { HERMES_TOOLSETS, isHermesToolset } from './toolsets.ts';
