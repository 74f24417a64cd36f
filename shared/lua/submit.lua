-- submit: accepts 1..n commands of one session, in order, atomically.
-- KEYS 1-6 as lib, 7 sweep tombstone (string key; the record's own key when there is no sweep), 8 streams (zset reply_to -> ms of its last seed, for trim)
-- ARGV 1-6 as lib, 7 session_id 8 digest of rollout_id and attempt, or '' to skip the check 9 parked_limit 10 results_limit (unread entries) 11 wait_ttl_ms (seed never begun) 12 session_ttl_ms (from first begin of seed)
--   13 reply_to (names KEYS 5) 14 queue of the seed, then 5 per command: kind seed|activate|close, cid ('seed' and 'close' are fixed), body digest, payload json, when now|idle
-- returns { 'moved', reply_to } the session answers on another stream: call again with that one
--   | { queue, job_id, name, cid | '' x4, then per command: status, detail }
--   accepted (parked|dispatched|answered)  dup (letter; same id and digest: join or replay)  late (letter; the same seed, but a close was accepted: a front answers 409, a retry joins)  refused (conflict|identity|closed|unknown_session|sweep_cancelled|backpressure|parked_full|skipped)
-- The caller must add the job when there is one (jobId makes it idempotent). Repeating the whole call after any error is safe and re-issues a lost dispatch.
local sid, idt, plimit, rlimit = ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local reply_to, queue = ARGV[13], ARGV[14]
local wrong = elsewhere(reply_to)
if wrong then return wrong end
local out, j, fresh, stop = { '', '', '', '' }, nil, false, false
local function foreign() return idt ~= '' and get('idt') and get('idt') ~= idt end
local function say(a, b) out[#out + 1] = a out[#out + 1] = b end
local function add(c, kind, d, payload)
  put(c, { s = 'p', n = tostring(incr('n')), k = kind, d = d })
  if payload ~= '' then call('HSET', P, c, payload) end
  call('RPUSH', M, c)
  fresh = true
  if get('run') then return say('accepted', 'parked') end
  j = advance()
  say('accepted', open(cmd(c)) and 'dispatched' or 'answered')
end
local function seed(d, payload)
  local x, st = cmd('seed'), get('st')
  local over = st and (get('cx') or st == 'z')
  if not x and over then return say('refused', 'closed') end
  if foreign() then return say('refused', 'identity') end
  if x then if x.d == d then return say(over and 'late' or 'dup', x.s) end return say('refused', over and 'closed' or 'conflict') end
  if KEYS[7] ~= S and call('EXISTS', KEYS[7]) == 1 then return say('refused', 'sweep_cancelled') end
  if call('XLEN', OUT) >= rlimit then return say('refused', 'backpressure') end
  -- the first write: a full Redis refuses it, and so the whole seed (PERSIST it would let through, and all that follows with it)
  call('ZADD', KEYS[8], num(NOW), reply_to)
  call('PERSIST', S)
  set('st', 'n', 'sid', sid, 'idt', idt == '' and '-' or idt, 'tt', ARGV[12], 'xp', num(NOW + tonumber(ARGV[11])), 'rt', reply_to, 'nq', queue)
  if get('x:seed') then
    put('seed', { s = 'p', n = tostring(incr('n')), k = 's', d = d })
    answer('seed', 'cancelled', get('x:seed'))
    set('st', 'f')
    due(1e15)
    return say('accepted', 'answered')
  end
  add('seed', 's', d, payload)
end
local function activate(c, d, payload)
  local x, st = cmd(c), get('st')
  if not st then return say('refused', 'unknown_session') end
  if foreign() then return say('refused', 'identity') end
  if x then if x.d == d and x.k == 'a' then return say('dup', x.s) end return say('refused', 'conflict') end
  if st == 'z' or get('cx') then return say('refused', 'closed') end
  local code, class = get('x:' .. c), 'cancelled'
  if st == 'f' then class, code = seed_result()
  elseif st == 'l' then class, code = 'infra', 'sandbox_lost' end
  if code then
    put(c, { s = 'p', n = tostring(incr('n')), k = 'a', d = d })
    answer(c, class, code)
    return say('accepted', 'answered')
  end
  if call('LLEN', M) >= plimit then return say('refused', 'parked_full') end
  add(c, 'a', d, payload)
end
local function close(when)
  local st, cx = get('st'), get('cx')
  if foreign() then return say('refused', 'identity') end
  if not st then -- never seen: leave a tombstone that blocks a late seed
    set('st', 'k', 'sid', sid, 'idt', idt == '' and '-' or idt, 'rt', reply_to)
    call('ZADD', KEYS[8], num(NOW), reply_to)
    answer(close_cid(), 'ok', 'nothing_to_close')
    closed()
    return say('accepted', 'answered')
  end
  if cx and cmd(cx).s == 'o' then return say('dup', 'o') end
  if cx and open(cmd(cx)) and (when == 'idle' or cmd(cx).s ~= 'p') then return say('dup', cmd(cx).s) end
  if when == 'now' then
    fresh = true
    j = close_now('by_close')
  else
    local c = close_cid()
    call('RPUSH', M, c)
    fresh = true
    if not get('run') then j = advance() end
  end
  local s = cmd(get('cx')).s
  say(cx and open({ s = s }) and 'dup' or 'accepted', s == 'p' and 'parked' or s == 'q' and 'dispatched' or 'answered')
end
for i = 15, #ARGV, 5 do
  if stop then say('refused', 'skipped')
  elseif ARGV[i] == 'seed' then seed(ARGV[i + 2], ARGV[i + 3]) stop = out[#out - 1] == 'refused'
  elseif ARGV[i] == 'activate' then activate(ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  else close(ARGV[i + 4]) end
end
if not fresh then local run = get('run') if run and cmd(run).s == 'q' then j = job(run) end end
if j then for i = 1, 4 do out[i] = j[i] end end
return out
