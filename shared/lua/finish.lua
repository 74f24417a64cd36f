-- finish: ends the running command: fence check, cancel decision, state change, result, and the next command: dispatched, or taken by the caller at once (fast path).
-- KEYS 1-6 as lib, 7 leases of the engine (zset) 8 sessions bound to the engine (set) 9 blob (string); an unused one = the record's key
-- ARGV 1-6 as lib, 7 cid 8 fence 9 class, or 'again' (give the command back: shutdown, lease lost) 10 code 11 body json 12 blob key or '' 13 blob_ttl_ms 14 hold_ms (lease beyond the session's deadline)
--   15 queue ('any' | 'engine-<id>') 16 engine id or '' 17 descriptor json 18 flags: 'r' sandbox released, 'l' sandbox lost 19 nonce for the next command, or '' = do not take it 20 max_begins 21 channel of freed slots
--   14-17 only matter to seed; 7, 8 to seed, close and flag l
-- returns {'gone'} | {'dup', class, fence of the result, next?} the caller's own fence: its answer was lost, keep everything; another's: release what is ours
--   | {'fenced'} | {'blob_missing'} write it again | {'lease_lost'} release, then finish 'again' | {'again', job} dispatched again, add the job
--   | {'cancel_pending', code} a seed that succeeded was cancelled: release, then finish as cancelled | { class as published, next? }
-- next is a job (queue, job id, name, cid: add it BEFORE the processor returns), or, taken: '', job id, name, cid followed by begin's 13 values: run it now, in the same call of the processor, no job.
-- Repeating the call after a lost answer gives dup with the same next. An activation given back after tool or MCP acts had begun is published infra/worker_lost instead.
local c, fence, class, code, blob, queue, engine, flags, nonce = ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[12], ARGV[15], ARGV[16], ARGV[18], ARGV[19]
local LE, BOUND, BLOB = KEYS[7], KEYS[8], KEYS[9]
local x = cmd(c)
if not x then return { 'gone' } end
local run = get('run')
local function taken(j, v) j[1] = '' return with(j, v) end
-- gives a slot back and tells those who wait for one
local function free(member) call('ZREM', LE, member) call('PUBLISH', ARGV[21], engine) end
if not open(x) then
  local by = string.match(call('HGET', R, c) or '', '"fence":"([^"]*)"') or ''
  if run and nonce ~= '' and nonce_of(get('fe')) == nonce then return with({ 'dup', CLASS[x.s], by }, taken(job(run), heard(run, tonumber(ARGV[20])))) end
  return with({ 'dup', CLASS[x.s], by }, wake())
end
if run ~= c or get('fe') ~= fence then return { 'fenced' } end
if blob ~= '' and call('EXISTS', BLOB) == 0 then return { 'blob_missing' } end
local tomb = get('x:' .. c)
if tomb and x.k ~= 'c' then
  if x.k == 's' and class == 'ok' then return { 'cancel_pending', tomb } end
  class, code = 'cancelled', tomb
end
local member = SK .. '.' .. nonce_of(fence)
if class == 'again' then
  if x.k == 'a' and get('ac') then class, code = 'infra', 'worker_lost'
  else
    if x.k == 's' and engine ~= '' and string.find(flags, 'r') then free(member) end
    x.s = 'q'
    put(c, x)
    disown()
    due(NOW + RECHECK)
    return with({ 'again' }, job(c))
  end
end
if x.k == 's' then
  if class == 'ok' then
    if engine ~= '' then
      if tonumber(call('ZSCORE', LE, member) or -1) < 0 then return { 'lease_lost' } end
      call('ZADD', LE, 'XX', num(tonumber(get('xp')) + tonumber(ARGV[14])), member)
      call('SADD', BOUND, SK)
      set('en', engine, 'le', member)
    end
    set('st', 'r', 'q', queue)
    if ARGV[17] ~= '' then call('HSET', P, 'sb', ARGV[17]) end
  else
    if engine ~= '' and string.find(flags, 'r') then free(member) end
    if get('st') == 'n' then set('st', 'f') end
  end
elseif x.k == 'a' and string.find(flags, 'l') then
  unbind(LE, BOUND)
end
if blob ~= '' then call('PEXPIRE', BLOB, ARGV[13]) end
publish(c, x, class, code, fence, ARGV[11], blob)
if x.k == 'c' then
  if get('le') then
    if class == 'ok' then free(get('le')) else call('ZADD', LE, 'XX', num(NOW - 1), get('le')) end
    if class == 'ok' then call('SREM', BOUND, SK) end
  end
  if class == 'ok' then closed() return { class } end
  advance()
  return { class }
end
if get('st') == 'f' then answer_parked(class, code)
elseif get('st') == 'l' then answer_parked('infra', 'sandbox_lost') end
local j = advance()
if j and nonce ~= '' then return with({ class }, taken(j, start(j[4], nonce, tonumber(ARGV[20])))) end
return with({ class }, j)
