import { Redis } from 'ioredis';

const LOG = `local function log(...) redis.call('XADD', 'log', '*', ...) end
`;
const SCRIPTS = {
  create: `local name, key, engine = ARGV[1], ARGV[2], ARGV[3]
if redis.call('EXISTS', 'box:' .. name) == 1 then return 'exists' end
redis.call('HSET', 'box:' .. name, 'engine', engine, 'epoch', '0', 'running', '')
redis.call('SADD', 'boxes:' .. engine, name)
local open = redis.call('SCARD', 'boxes:' .. engine)
if open > tonumber(redis.call('HGET', 'peak', engine) or 0) then redis.call('HSET', 'peak', engine, open) end
log('event', 'create', 'session', key, 'name', name)
return 'ok'`,
  remove: `local box = 'box:' .. ARGV[1]
local engine = redis.call('HGET', box, 'engine')
if not engine then return 'none' end
redis.call('DEL', box)
redis.call('SREM', 'boxes:' .. engine, ARGV[1])
log('event', 'remove', 'name', ARGV[1], 'by', ARGV[2])
return 'ok'`,
  start: `local box = 'box:' .. ARGV[1]
if redis.call('EXISTS', box) == 0 then return 'none' end
if tonumber(redis.call('HGET', box, 'epoch')) > tonumber(ARGV[2]) then return 'stale' end
redis.call('HSET', box, 'epoch', ARGV[2], 'running', ARGV[2])
log('event', 'start', 'session', ARGV[3], 'number', ARGV[4], 'epoch', ARGV[2])
return 'ok'`,
  tool: `if redis.call('HGET', 'box:' .. ARGV[1], 'running') ~= ARGV[2] then return 'dead' end
log('event', 'tool', 'session', ARGV[3], 'number', ARGV[4], 'epoch', ARGV[2], 'act', ARGV[5])
return 'ok'`,
  stop: `local box = 'box:' .. ARGV[1]
if redis.call('HGET', box, 'running') == ARGV[2] then redis.call('HSET', box, 'running', '') end
return 'ok'`,
  stopEarlier: `local box = 'box:' .. ARGV[1]
if redis.call('EXISTS', box) == 0 then return 'none' end
if tonumber(redis.call('HGET', box, 'epoch')) < tonumber(ARGV[2]) then
  redis.call('HSET', box, 'running', '', 'epoch', ARGV[2])
end
return 'ok'`,
};

/** An entry of the sandboxes' own log. */
export interface WorldEvent {
  readonly event: string;
  readonly session: string;
  readonly number: number;
  readonly epoch: string;
  readonly act: string;
}

/**
 * The sandboxes of a fault run, in a Redis of their own that is never faulted: they refuse a stale fence as a sandbox
 * with a fence marker does, and write down what was really done in them.
 */
export class World {
  readonly redis: Redis;

  constructor(url: string) {
    this.redis = new Redis(url, { maxRetriesPerRequest: null });
    for (const [name, lua] of Object.entries(SCRIPTS))
      this.redis.defineCommand(`world_${name}`, { numberOfKeys: 0, lua: LOG + lua });
  }

  async create(name: string, key: string, engine: string): Promise<string> {
    return await this.#call('create', name, key, engine);
  }
  async remove(name: string, by: string): Promise<string> {
    return await this.#call('remove', name, by);
  }
  /** Starts the runner of one fence; a lower epoch than one that was seen is refused. */
  async start(name: string, epoch: string, key: string, number: string): Promise<string> {
    return await this.#call('start', name, epoch, key, number);
  }
  async tool(name: string, epoch: string, key: string, number: string, act: number): Promise<string> {
    return await this.#call('tool', name, epoch, key, number, String(act));
  }
  async stop(name: string, epoch: string): Promise<string> {
    return await this.#call('stop', name, epoch);
  }
  async stopEarlier(name: string, epoch: string): Promise<string> {
    return await this.#call('stopEarlier', name, epoch);
  }

  async sandboxes(engine: string): Promise<string[]> {
    return await this.redis.smembers(`boxes:${engine}`);
  }
  async exists(name: string): Promise<boolean> {
    return (await this.redis.exists(`box:${name}`)) === 1;
  }
  /** Most sandboxes that were open at once. */
  async peak(engine: string): Promise<number> {
    return Number((await this.redis.hget('peak', engine)) ?? 0);
  }
  async log(): Promise<WorldEvent[]> {
    const entries = await this.redis.xrange('log', '-', '+');
    return entries.map(([, list]) => {
      const fields = new Map<string, string>();
      for (let index = 0; index < list.length; index += 2) fields.set(list[index] ?? '', list[index + 1] ?? '');
      const text = (name: string): string => fields.get(name) ?? '';
      return {
        event: text('event'),
        session: text('session'),
        number: Number(text('number')),
        epoch: text('epoch'),
        act: text('act'),
      };
    });
  }

  async #call(name: keyof typeof SCRIPTS, ...args: readonly string[]): Promise<string> {
    const call: unknown = Reflect.get(this.redis, `world_${name}`);
    if (typeof call !== 'function') throw new Error(`the world has no ${name}`);
    return String(await Reflect.apply(call, this.redis, args));
  }
}
