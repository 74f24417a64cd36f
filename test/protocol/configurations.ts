/** What may go wrong in one search, and how often. */
export interface Budget {
  /** A worker dies. */
  readonly crash: number;
  /** BullMQ hands a job out again although its owner lives. */
  readonly redeliver: number;
  /** A living owner is silent for longer than the lapse. */
  readonly deaf: number;
  /** The grace of a takeover ends although the owner lives. */
  readonly grace: number;
  /** Redis is away for longer than a lock: all jobs are handed out again, every owner was silent, none is dead. */
  readonly outage: number;
  /** A worker drains. */
  readonly drain: number;
  readonly cancel: number;
  /** Close now. */
  readonly close: number;
  /** The deadline passes. */
  readonly expire: number;
  /** An engine lapses. */
  readonly engine: number;
  /** Whoever got a job from a script dies before it adds it. */
  readonly adderCrash: number;
  /** A reply is lost and the call is made again. */
  readonly lost: number;
  /** The lease of a living seed is reaped. */
  readonly reapLive: number;
  readonly closeFail: number;
  readonly seedFail: number;
  /** 2: the last writes before a fail-over may be lost, at any moment. */
  readonly failover: number;
}

export interface Configuration {
  /** Submit calls in order; letters are commands: s seed, a and b activations, i close when idle, n close now. */
  readonly plan: readonly string[];
  readonly budget: Partial<Budget>;
  readonly cancelOf?: readonly string[];
  /** False: workers never take the next command in finish. */
  readonly fastPath?: boolean;
  /** No living owner may be replaced. */
  readonly noTakeover?: boolean;
  /** No `infra` result may appear. */
  readonly noLoss?: boolean;
}

export const NO_FAULTS: Budget = {
  crash: 0,
  redeliver: 0,
  deaf: 0,
  grace: 0,
  outage: 0,
  drain: 0,
  cancel: 0,
  close: 0,
  expire: 0,
  engine: 0,
  adderCrash: 0,
  lost: 0,
  reapLive: 0,
  closeFail: 0,
  seedFail: 0,
  failover: 0,
};

const replaced = { redeliver: 1, deaf: 1, grace: 1 };
const early = ['a1', 'seed'];
const upfront = { plan: ['sai'], budget: { crash: 1, cancel: 1, close: 1, adderCrash: 1 }, cancelOf: early };

/** Under a second or two each: for every test run, and to show that planted faults are seen. */
export const SMALL = {
  tiny: { plan: ['sai'], budget: {} },
  tinyNoFastPath: { plan: ['sai'], budget: {}, fastPath: false },
  outage: { plan: ['sai'], budget: { outage: 1 }, noTakeover: true, noLoss: true },
  redelivery: { plan: ['sai'], budget: { redeliver: 2, deaf: 1 }, noTakeover: true, noLoss: true },
  takeover: { plan: ['sai'], budget: replaced },
  mFence: { plan: ['sa'], budget: replaced },
  mReap: { plan: ['sa'], budget: { reapLive: 1 } },
  mClose: { plan: ['sai'], budget: { closeFail: 1 } },
  mSeed: { plan: ['sai'], budget: { seedFail: 1 } },
  mCancel: { plan: ['sai'], budget: { cancel: 1 }, cancelOf: early },
  mCancelNoFastPath: { plan: ['sai'], budget: { cancel: 1 }, cancelOf: early, fastPath: false },
  mEngine: { plan: ['sa'], budget: { engine: 1, close: 1 } },
  mLost: { plan: ['sa'], budget: { lost: 1 } },
  mExpire: { plan: ['sa'], budget: { expire: 1 } },
  mMark: { plan: ['sa'], budget: { redeliver: 2, deaf: 2 }, noTakeover: true },
  mTwo: { plan: ['sab'], budget: {}, noLoss: true },
  mAlive: { plan: ['sa'], budget: { redeliver: 1, crash: 1 }, fastPath: false },
  mOutage: { plan: ['sa'], budget: { outage: 1 }, noTakeover: true, noLoss: true },
  mCrash: { plan: ['sa'], budget: { crash: 1 } },
  mDrain: { plan: ['sa'], budget: { drain: 1 } },
  mRedelivery: { plan: ['sa'], budget: { redeliver: 1, deaf: 1 }, noTakeover: true, noLoss: true },
} as const satisfies Record<string, Configuration>;

const LARGE = {
  outageNoFastPath: { ...SMALL.outage, fastPath: false },
  outage2: { plan: ['sai'], budget: { outage: 2, lost: 1 }, noTakeover: true, noLoss: true },
  outageClose: { plan: ['sai'], budget: { outage: 1, close: 1, cancel: 1 }, cancelOf: early, noTakeover: true },
  outageCrash: { plan: ['sa'], budget: { outage: 1, crash: 1, close: 1 } },
  redeliveryNoFastPath: { ...SMALL.redelivery, fastPath: false },
  takeoverNoFastPath: { ...SMALL.takeover, fastPath: false },
  takeoverClose: { plan: ['sa'], budget: { ...replaced, close: 1 } },
  takeoverCloseNoFastPath: { plan: ['sa'], budget: { ...replaced, close: 1 }, fastPath: false },
  takeoverCancel: { plan: ['sa'], budget: { ...replaced, cancel: 1 }, cancelOf: early },
  takeoverCrash: { plan: ['sa'], budget: { ...replaced, crash: 1 } },
  crashes: { plan: ['sai'], budget: { crash: 2 } },
  crashesNoFastPath: { plan: ['sai'], budget: { crash: 2 }, fastPath: false },
  drains: { plan: ['sai'], budget: { drain: 2, close: 1 } },
  drainCrash: { plan: ['sa'], budget: { drain: 1, crash: 1, cancel: 1 }, cancelOf: early },
  upfront,
  upfrontNoFastPath: { ...upfront, fastPath: false },
  stepwise: { plan: ['s', 'a', 'i'], budget: { crash: 1, cancel: 1, close: 1 } },
  two: { plan: ['sab'], budget: { crash: 1, cancel: 1, close: 1 }, cancelOf: ['a1', 'a2'] },
  fails: { plan: ['sai'], budget: { seedFail: 1, closeFail: 1, crash: 1, close: 1 } },
  reaps: { plan: ['sai'], budget: { reapLive: 1, crash: 1, close: 1 } },
  stalls: { plan: ['sa'], budget: { ...replaced, reapLive: 1, close: 1 } },
  lostReply: { plan: ['sai'], budget: { lost: 2, close: 1 } },
  lostCrash: { plan: ['sai'], budget: { lost: 1, crash: 1 } },
  lostTakeover: { plan: ['sa'], budget: { lost: 1, ...replaced } },
  expire: { plan: ['s', 'a'], budget: { expire: 1, crash: 1, cancel: 1, closeFail: 1 } },
  expireTakeover: { plan: ['sa'], budget: { expire: 1, ...replaced } },
  expireCrash: { plan: ['sa'], budget: { expire: 1, crash: 2 } },
  engine: { plan: ['sai'], budget: { engine: 1, crash: 1, close: 1 } },
  engineTakeover: { plan: ['sa'], budget: { engine: 1, ...replaced } },
  failoverCancel: { plan: ['sa'], budget: { failover: 2, cancel: 1, close: 1 } },
  failover: { plan: ['sai'], budget: { failover: 2, crash: 1 } },
} as const satisfies Record<string, Configuration>;

export const CONFIGURATIONS: Readonly<Record<string, Configuration>> = { ...SMALL, ...LARGE };
