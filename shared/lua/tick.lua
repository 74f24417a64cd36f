-- tick (reconcile + silent owners + expiry + engine loss): looks after one session that is due. Idempotent; any number of workers may call it.
-- KEYS 1-6 as lib, 7 leases of its engine 8 sessions bound to its engine 9 engines (7, 8 = the record's key when it has no engine)
-- ARGV 1-6 as lib, 7 engine that the caller read 9 reply_to that the caller read, 8 engine_grace_ms (1e15 = do not judge engines: for engine ttl + grace after each reconnect)
-- returns {'gone'} | {'moved'} engine changed: read again | {'closed'} | {'lost', job?} | {'ok', job?}: add the job (a no-op where it exists). A running command whose owner was heard within lapse_ms gets no job.
local engine, ENGINES = ARGV[7], KEYS[9]
local st = get('st')
if not st or st == 'z' then call('ZREM', DUE, SK) return { 'gone' } end
if (get('en') or '') ~= engine or elsewhere(ARGV[9]) then return { 'moved' } end
local run, t = get('run'), NOW
if string.sub(get('q') or '', 1, 7) == 'engine-' and tonumber(call('ZSCORE', ENGINES, engine) or 0) + tonumber(ARGV[8]) <= t then
  unbind(KEYS[7], KEYS[8])
  answer_parked('infra', 'engine_lost')
  if not run then due(1e15) return { 'lost' } end
  local x = cmd(run)
  if x.k == 'c' then -- a close goes on elsewhere, without a sandbox
    x.s = 'q'
    put(run, x)
    disown()
    del('b')
    due_at = t + RECHECK
    return with({ 'lost' }, job(run))
  end
  answer(run, 'infra', 'engine_lost')
  return with({ 'lost' }, advance())
end
if tonumber(get('xp')) <= t then
  local cx = get('cx')
  if cx and not open(cmd(cx)) then unbind(KEYS[7], KEYS[8]) closed() return { 'closed' } end -- a failed close nobody repeated: the reaper has the sandbox
  if not cx or cmd(cx).s == 'p' then
    close_now('expired')
    if get('st') == 'z' then return { 'closed' } end
    run = get('run')
  end
end
if run then
  if cmd(run).s == 'b' then
    if not silent(LAPSE) then due_at = tonumber(get('hb')) + LAPSE return { 'ok' } end
    due_at = t + LAPSE
  else -- a waiting command is looked at ever more rarely
    due_at = t + RECHECK * math.min(2 ^ incr('t'), 64)
  end
  return with({ 'ok' }, job(run))
end
due(1e15)
return { 'ok' }
