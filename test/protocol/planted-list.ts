import type { SMALL } from './configurations.ts';

export interface PlantedFault {
  readonly what: string;
  readonly configuration: keyof typeof SMALL;
  readonly from: string;
  readonly to: string;
  /** Why a search does not see it; left out where it does. */
  readonly secondLine?: string;
}

/** Changes to the scripts that break a promise of the contract. */
export const PLANTED_FAULTS: readonly PlantedFault[] = [
  { what: 'no fence in finish', configuration: 'mFence', from: "get('fe') ~= fence", to: 'false' },
  {
    what: 'no fence in append and renew',
    configuration: 'mFence',
    from: "if r[1] ~= ARGV[1] or r[2] ~= ARGV[2] then return { 'fenced' } end",
    to: '',
  },
  {
    what: 'append does not mark that acts have begun',
    configuration: 'mFence',
    from: "'hb', hb, 'ac', '1')",
    to: "'hb', hb)",
  },
  {
    what: 'an activation whose acts had begun runs again',
    configuration: 'mFence',
    from: "or x.k == 'a' and get('ac')",
    to: '',
  },
  { what: 'takeover at once, without a grace', configuration: 'mOutage', from: 'if su == 0 then', to: 'if false then' },
  {
    what: 'the heartbeat does not clear the mark',
    configuration: 'mMark',
    from: "if r[3] then redis.call('HDEL', KEYS[1], 'su') end",
    to: '',
  },
  {
    what: 'the heartbeat clears the mark but is not stored',
    configuration: 'mOutage',
    from: "redis.call('HSET', KEYS[1], 'hb', num(ms))",
    to: '',
    secondLine: 'the mark',
  },
  {
    what: "tick does not hand out a silent owner's command again",
    configuration: 'mAlive',
    from: "return with({ 'ok' }, job(run))",
    to: "return with({ 'ok' }, cmd(run).s == 'q' and job(run))",
  },
  {
    what: 'acts of one activation count for the next',
    configuration: 'mTwo',
    from: "del('b', 'ac', 't')\n  if not c",
    to: "del('b', 't')\n  if not c",
  },
  {
    what: 'a dispatch does not make the session due',
    configuration: 'mCrash',
    from: 'due(NOW + RECHECK)\n  return job(c)',
    to: 'return job(c)',
  },
  {
    what: 'a command that was given back keeps its fence',
    configuration: 'mDrain',
    from: "x.s = 'q'\n    put(c, x)\n    disown()\n    due",
    to: "x.s = 'q'\n    put(c, x)\n    due",
  },
  {
    what: 'finish ignores an accepted cancel',
    configuration: 'mCancel',
    from: "class, code = 'cancelled', tomb",
    to: 'class, code = class, code',
  },
  {
    what: 'finish of a seed does not check its lease',
    configuration: 'mReap',
    from: "if tonumber(call('ZSCORE', LE, member) or -1) < 0 then return { 'lease_lost' } end",
    to: '',
  },
  {
    what: 'parked activations of a failed seed stay parked',
    configuration: 'mSeed',
    from: "if get('st') == 'f' then answer_parked(class, code)",
    to: 'if false then',
  },
  {
    what: 'ended commands are not recognised',
    configuration: 'mFence',
    from: 'if not open(x) then',
    to: 'if false then',
    secondLine: 'the running command and its fence',
  },
  {
    what: 'dup does not say whose result it is',
    configuration: 'mLost',
    from: `local by = string.match(call('HGET', R, c) or '', '"fence":"([^"]*)"') or ''`,
    to: "local by = ''",
  },
  {
    what: 'cancel of an ended command is accepted',
    configuration: 'mCancelNoFastPath',
    from: "if not open(x) then return { 'late', CLASS[x.s] } end",
    to: '',
  },
  {
    what: 'engine loss leaves lease and index',
    configuration: 'mEngine',
    from: "call('ZADD', leases, 'XX', num(NOW - 1), get('le')) call('SREM', bound, SK)",
    to: '',
  },
  {
    what: 'begin ignores the deadline',
    configuration: 'mExpire',
    from: "if x.k ~= 'c' and tonumber(get('xp')) <= t then",
    to: 'if false then',
  },
  {
    what: 'a failed close does not hand over its sandbox',
    configuration: 'mClose',
    from: "else call('ZADD', LE, 'XX', num(NOW - 1), get('le')) end",
    to: 'end',
  },
  {
    what: 'a cancelled parked command stays parked',
    configuration: 'mCancel',
    from: "if x.s == 'p' then call('LREM', M, 1, c) end",
    to: '',
  },
  {
    what: 'close keeps the lease',
    configuration: 'mSeed',
    from: "if class == 'ok' then free(get('le')) else",
    to: "if class == 'ok' then else",
    secondLine: 'the reaper, after the hold',
  },
  {
    what: 'begin out of turn',
    configuration: 'mSeed',
    from: "if get('run') ~= c then return { 'not_yet' } end",
    to: '',
    secondLine: 'only a fail-over leads there',
  },
  {
    what: 'an owner that was just heard is marked',
    configuration: 'mMark',
    from: "if not silent(GRACE) then return { 'alive' } end",
    to: '',
  },
  {
    what: 'an activation with acts is given back',
    configuration: 'mDrain',
    from: "if x.k == 'a' and get('ac') then class, code = 'infra', 'worker_lost'",
    to: 'if false then',
    secondLine: 'begin says lost',
  },
  {
    what: "a resent begin is another's",
    configuration: 'mLost',
    from: "if nonce_of(get('fe')) == nonce then return heard(c, max) end",
    to: '',
    secondLine: 'tick, after the lapse',
  },
  {
    what: 'a resent finish does not get the next command again',
    configuration: 'mLost',
    from: "if run and nonce ~= '' and nonce_of(get('fe')) == nonce then",
    to: 'if false then',
    secondLine: 'tick, after the lapse',
  },
];
