import type { Keys } from '@hermes-fleet/shared';

/** Clock of the scripts in a search: it stands still, and waiting is a step of the search instead. */
export const NOW = '1000000000';
/** Last heard longer ago than the grace, not yet longer than the lapse. */
export const SILENT = '999992000';
/** Longer ago than anything. */
export const LONG_AGO = '1';
export const FOREVER = 1e12;

export const SESSION = 'k';
export const REPLY_TO = 'c';
export const ENGINES = ['h1', 'h2'] as const;
export type Engine = (typeof ENGINES)[number];

type Flat = readonly string[];

/** What Redis holds about the one session of a search. Hashes and sorted sets as flat lists, sorted by name. */
export interface Stored {
  readonly record: Flat;
  readonly parked: Flat;
  readonly payloads: Flat;
  readonly results: Flat;
  /** Whether the session is looked at within a few re-checks. */
  readonly due: 'soon' | 'far' | '';
  readonly leases: Readonly<Record<Engine, Flat>>;
  readonly bound: Readonly<Record<Engine, Flat>>;
  readonly engines: Flat;
}

export const EMPTY: Stored = {
  record: [],
  parked: [],
  payloads: [],
  results: [],
  due: '',
  leases: { h1: [], h2: [] },
  bound: { h1: [], h2: [] },
  engines: ['h1', '9000000000', 'h2', '9000000000'],
};

/** An entry of the results stream, as the scripts wrote it since the restore. */
export interface Published {
  readonly command: string;
  readonly resultClass: string;
}

export function storedKeys(keys: Keys): string[] {
  const record = keys.record(SESSION);
  return [
    record,
    `${record}:m`,
    keys.payloads(SESSION),
    keys.storedResults(SESSION),
    keys.due,
    keys.leases('h1'),
    keys.leases('h2'),
    keys.bound('h1'),
    keys.bound('h2'),
    keys.engines,
    keys.results(REPLY_TO),
    keys.journal(SESSION, 0),
    keys.streams,
  ];
}
export const STORED_KEYS = 13;

export const RESTORE = `
redis.call('DEL', unpack(KEYS))
local lists = cjson.decode(ARGV[1])
for i, list in ipairs(lists) do
  if #list > 0 then
    if i == 2 then redis.call('RPUSH', KEYS[i], unpack(list))
    elseif i == 5 then redis.call('ZADD', KEYS[i], list[1] == 'soon' and '1000030000' or '1000000000000000', '${SESSION}')
    elseif i == 6 or i == 7 or i == 10 then for j = 1, #list, 2 do redis.call('ZADD', KEYS[i], list[j + 1], list[j]) end
    elseif i == 8 or i == 9 then redis.call('SADD', KEYS[i], unpack(list))
    else redis.call('HSET', KEYS[i], unpack(list)) end
  end
end`;

export const DUMP = `
local lists = {}
for i, key in ipairs(KEYS) do
  if i == 2 then lists[i] = redis.call('LRANGE', key, 0, -1)
  elseif i == 5 then
    local score = redis.call('ZSCORE', key, '${SESSION}')
    lists[i] = score and { tonumber(score) < 1010000000 and 'soon' or 'far' } or {}
  elseif i == 6 or i == 7 or i == 10 then lists[i] = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif i == 8 or i == 9 then lists[i] = redis.call('SMEMBERS', key)
  elseif i == 11 then
    lists[i] = {}
    for _, entry in ipairs(redis.call('XRANGE', key, '-', '+')) do
      table.insert(lists[i], entry[2][4])
      table.insert(lists[i], entry[2][8])
    end
  elseif i < 11 then lists[i] = redis.call('HGETALL', key) end
end
return cjson.encode(lists)`;

export function restoreArgument(stored: Stored): string {
  const { record, parked, payloads, results, due, leases, bound, engines } = stored;
  const isDue = due === '' ? [] : [due];
  return JSON.stringify([record, parked, payloads, results, isDue, leases.h1, leases.h2, bound.h1, bound.h2, engines]);
}

export function* pairs(flat: Flat): Generator<[string, string]> {
  for (let index = 0; index < flat.length; index += 2) yield [flat[index] ?? '', flat[index + 1] ?? ''];
}

const sorted = (flat: Flat, without?: string): string[] =>
  [...pairs(flat)]
    .filter(([name]) => name !== without)
    .toSorted(([left], [right]) => (left < right ? -1 : 1))
    .flat();

/** Reads what {@link DUMP} returned. An empty Lua table arrives as `{}`. */
export function readDump(json: string): { readonly stored: Stored; readonly published: readonly Published[] } {
  const lists = (JSON.parse(json) as unknown[]).map((list) => (Array.isArray(list) ? list.map(String) : []));
  const list = (index: number): string[] => lists[index] ?? [];
  const due = list(4)[0];
  return {
    stored: {
      // The count of a waiting command's ticks only spaces them out.
      record: sorted(list(0), 't'),
      parked: list(1),
      payloads: sorted(list(2)),
      results: sorted(list(3)),
      due: due === 'soon' || due === 'far' ? due : '',
      leases: { h1: sorted(list(5)), h2: sorted(list(6)) },
      bound: { h1: list(7).toSorted(), h2: list(8).toSorted() },
      engines: sorted(list(9)),
    },
    published: [...pairs(list(10))].map(([command, result]) => ({
      command,
      resultClass: (JSON.parse(result) as { class: string }).class,
    })),
  };
}
