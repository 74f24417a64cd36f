-- lib.lua: prelude put in front of every session script (submit begin finish cancel tick); not a script of its own.
-- KEYS 1 record(hash) 2 parked(list of cids) 3 payloads(hash cid->json, 'sb'->descriptor) 4 results(hash cid->json) 5 out(stream of the reply_to) 6 due(zset sk->ms)
-- ARGV 1 sk 2 recheck_ms 3 receipt_ms 4 cancel channel 5 lapse_ms (silence after which tick re-dispatches a running command) 6 grace_ms (takeover grace). One hash tag for all keys. Clock: Redis TIME only.
-- record fields: st n|r|k|z|f|l (new ready closing closed failed lost), sid, idt, n (last number), run (cid dispatched), fe (fence of run), hb (when its owner was last heard, ms),
--   su (when it was marked suspect, ms), rt (reply_to: the name of its results stream), nq (queue of its seed), ac ('1': a tool or MCP act of it has begun), b (its begins), t (its ticks), ep (epoch), cx (cid of the close), xp (deadline ms), tt (session ttl ms),
--   q (queue when seeded), en (engine), le (lease member), c:<cid> s:n:k:digest, x:<cid> cancel code
-- command letters: p parked, q dispatched and owned by nobody, b begun; o ok, i incomplete, f failed, n infra, c cancelled. Kinds: s a c.
local S, M, P, R, OUT, DUE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local SK, RECHECK, RECEIPT, CHAN, LAPSE, GRACE = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local call = redis.call
local NAME = { s = 'seed', a = 'activate', c = 'close' }
local LETTER = { ok = 'o', incomplete = 'i', failed = 'f', infra = 'n', cancelled = 'c' }
local CLASS = { o = 'ok', i = 'incomplete', f = 'failed', n = 'infra', c = 'cancelled' }
local TIME = call('TIME')
local NOW = tonumber(TIME[1]) * 1000 + math.floor(tonumber(TIME[2]) / 1000)
-- the record is read once (of its commands the one that most scripts are about, ARGV 7), changed in memory and written once by flush(), which the loader puts behind every script (`main`)
local FIX = { 'st', 'run', 'fe', 'hb', 'su', 'ac', 'b', 'ep', 'cx', 'xp', 'tt', 'q', 'en', 'le', 'sid', 'idt', 'n', 't', 'rt', 'nq', 'c:' .. ARGV[7], 'x:' .. ARGV[7] }
-- (so is the time at which the session is looked at again)
local rec, known, dirty, ttl, due_at = {}, {}, {}, nil, nil
for i, v in ipairs(call('HMGET', S, unpack(FIX))) do rec[FIX[i]] = v or nil known[FIX[i]] = true end
local function get(f)
  if not known[f] then rec[f] = call('HGET', S, f) or nil known[f] = true end
  return rec[f]
end
local function set(...)
  local a = { ... }
  for i = 1, #a, 2 do rec[a[i]] = tostring(a[i + 1]) known[a[i]] = true dirty[a[i]] = true end
end
local function del(...)
  for _, f in ipairs({ ... }) do if get(f) then rec[f] = nil dirty[f] = true end end
end
local function num(v) return string.format('%.0f', v) end
local function incr(f) local v = num(tonumber(get(f) or 0) + 1) set(f, v) return tonumber(v) end
local function flush()
  local w, d = {}, {}
  for f in pairs(dirty) do if rec[f] then w[#w + 1] = f w[#w + 1] = rec[f] else d[#d + 1] = f end end
  if #w > 0 then call('HSET', S, unpack(w)) end
  if #d > 0 then call('HDEL', S, unpack(d)) end
  if ttl then call('PEXPIRE', S, ttl) end
  if due_at then call('ZADD', DUE, num(due_at), SK) end
end
local function cmd(c)
  local v = get('c:' .. c)
  if not v then return nil end
  local s, n, k, d = string.match(v, '^(%a):(%d+):(%a):(.*)$')
  return { s = s, n = n, k = k, d = d }
end
local function put(c, x) set('c:' .. c, x.s .. ':' .. x.n .. ':' .. x.k .. ':' .. x.d) end
local function open(x) return x.s == 'p' or x.s == 'q' or x.s == 'b' end
local function due(at) local xp = tonumber(get('xp') or 0) due_at = xp > 0 and math.min(xp, at) or at end
-- the one place where a command becomes terminal: state + stored result + stream entry, together
local function publish(c, x, class, code, fence, body, blob)
  x.s = LETTER[class]
  put(c, x)
  del('x:' .. c)
  if x.k == 'a' then call('HDEL', P, c) end
  local r = '{"class":"' .. class .. '","code":"' .. code .. '","fence":"' .. fence .. '","blob":"' .. blob .. '","body":' .. body .. '}'
  call('HSET', R, c, r)
  call('XADD', OUT, '*', 's', get('sid') or '', 'c', c, 'k', NAME[x.k], 'r', r, 'b', blob)
end
local function answer(c, class, code) publish(c, cmd(c), class, code, '', 'null', '') end
-- whether the caller took the session's results stream for another one: it must read `rt` again
local function elsewhere(reply_to) local rt = get('rt') return rt and rt ~= reply_to and { 'moved', rt } end
-- what to add to BullMQ: queue, job id, job name, cid
local function job(c)
  local x = cmd(c)
  return { x.k == 's' and get('nq') or get('q') or 'any', SK .. '.' .. x.n, NAME[x.k], c }
end
local function with(head, j) if j then for i = 1, #j do head[#head + 1] = j[i] end end return head end
local function disown() del('fe', 'hb', 'su') end
local function silent(ms) return NOW - tonumber(get('hb') or 0) >= ms end
local function closed()
  set('st', 'z')
  disown()
  del('run', 'b', 'ac', 't')
  call('DEL', M, P)
  call('ZREM', DUE, SK)
  due_at = nil
  ttl = RECEIPT
  call('PEXPIRE', R, RECEIPT)
end
-- dispatches the next parked command and returns its job; nil when there is none
local function advance()
  local c = call('LPOP', M)
  disown()
  del('b', 'ac', 't')
  if not c then del('run') due(1e15) return nil end
  if cmd(c).k == 'c' and not get('ep') then answer(c, 'ok', 'nothing_to_close') closed() return nil end
  local x = cmd(c)
  x.s = 'q'
  put(c, x)
  set('run', c)
  due(NOW + RECHECK)
  return job(c)
end
-- what the owner of the running command needs (begin and finish answer it): verdict, fence, begins, previous fence, st, payload, seed payload, descriptor, code, xp, queue, engine, lease
local function view(c, prev, max)
  local x, code, verdict = cmd(c), get('x:' .. c), 'run'
  if code then verdict = 'cancelled'
  elseif tonumber(get('b')) > max or x.k == 'a' and get('ac') then verdict = 'lost' code = 'worker_lost' end
  local p = call('HMGET', P, c, 'seed', 'sb')
  return { verdict, get('fe'), tonumber(get('b')), prev, get('st'), p[1] or '', p[2] or '', p[3] or '', code or '', get('xp') or '', get('q') or 'any', get('en') or '', get('le') or '' }
end
-- makes the caller the owner: raises the fence, so that every earlier run of it is refused everywhere
local function start(c, nonce, max)
  local x, prev, t = cmd(c), get('fe') or '', NOW
  local ep = num(math.max(tonumber(get('ep') or 0) + 1, t)) -- by the clock, so that it also rises across a fail-over that lost writes
  incr('b')
  if x.k ~= 'c' and tonumber(get('xp')) <= t then -- past its deadline: never execute; the tick will close the session
    if not get('x:' .. c) then set('x:' .. c, 'expired') end
  elseif x.k == 's' and tonumber(get('b')) == 1 then set('xp', num(t + tonumber(get('tt')))) end
  x.s = 'b'
  put(c, x)
  set('ep', ep, 'fe', ep .. '.' .. nonce, 'hb', num(t))
  del('su', 't')
  if x.k == 'c' then set('st', 'k') due_at = t + LAPSE else due(t + LAPSE) end
  return view(c, prev, max)
end
-- the same for a resent call of the owner itself: the answer again, and a sign of life
local function heard(c, max) set('hb', num(NOW)) del('su') return view(c, '', max) end
local function nonce_of(fence) return string.match(fence or '', '%.(.*)$') or '' end
-- class and code of the seed's result: what its parked and later activations get when it ended not ok
local function seed_result()
  local r = call('HGET', R, 'seed') or ''
  return string.match(r, '^{"class":"([^"]*)"') or 'infra', string.match(r, '"code":"([^"]*)"') or 'internal'
end
-- answers every parked activation; a parked close stays
local function answer_parked(class, code)
  local keep
  for _, c in ipairs(call('LRANGE', M, 0, -1)) do
    if cmd(c).k == 'c' then keep = c else answer(c, class, code) end
  end
  call('DEL', M)
  if keep then call('RPUSH', M, keep) end
end
-- makes (or finds) the open close command; a failed close is followed by close.2, close.3 ...
local function close_cid()
  local cx = get('cx')
  if cx then
    local x = cmd(cx)
    if open(x) then return cx, false end
    cx = 'close.' .. tostring(tonumber(string.match(cx, '%.(%d+)$') or '1') + 1)
  else cx = 'close' end
  put(cx, { s = 'p', n = tostring(incr('n')), k = 'c', d = '-' })
  set('cx', cx)
  return cx, true
end
-- the session has no sandbox any more (engine lost, sandbox lost): its lease lapses (the reaper of that engine settles it, so it counts until then), what follows may run on any worker
local function unbind(leases, bound)
  if get('le') then call('ZADD', leases, 'XX', num(NOW - 1), get('le')) call('SREM', bound, SK) end
  del('en', 'le')
  set('q', 'any')
  if get('st') == 'r' then set('st', 'l') end
end
-- close at once: parked answered, running cancelled, close next. Returns a job to add, or nil
local function close_now(code)
  local cx = close_cid()
  local run = get('run')
  set('st', 'k')
  if run == cx then return nil end
  answer_parked('cancelled', code)
  call('DEL', M)
  call('RPUSH', M, cx)
  if run then
    if cmd(run).s == 'b' then
      if not get('x:' .. run) then set('x:' .. run, code) end
      call('PUBLISH', CHAN, SK .. ' ' .. run)
      return nil
    end
    answer(run, 'cancelled', code)
  end
  return advance()
end
-- the job of a dispatched command that nobody runs, or whose owner is silent; nil when all is well
local function wake()
  local run = get('run')
  if run and (cmd(run).s == 'q' or silent(LAPSE)) then return job(run) end
end
