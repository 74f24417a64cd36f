-- cancel: one seed or activation. (Cancelling a session = submit close now; a sweep = tombstone key, then close now for each member.)
-- KEYS 1-6 as lib. ARGV 1-6 as lib, 7 cid 8 code (by_caller) 9 reply_to (names KEYS 5)
-- returns {'moved', reply_to} call again with that stream | {'refused'} a close cannot be cancelled | {'late', class} | {'accepted', tombstone|answered|signalled, job?}
-- accepted means: the result of this command is or will be 'cancelled'. tombstone: not submitted yet, kept receipt_ms (or as long as the session).
local c, code = ARGV[7], ARGV[8]
local wrong = elsewhere(ARGV[9])
if wrong then return wrong end
local x = cmd(c)
if not x then
  set('x:' .. c, code)
  if not get('st') then ttl = RECEIPT end
  return { 'accepted', 'tombstone' }
end
if x.k == 'c' then return { 'refused' } end
if not open(x) then return { 'late', CLASS[x.s] } end
if x.s == 'b' then
  if not get('x:' .. c) then set('x:' .. c, code) end
  call('PUBLISH', CHAN, SK .. ' ' .. c)
  return { 'accepted', 'signalled' }
end
if x.s == 'p' then call('LREM', M, 1, c) end
answer(c, 'cancelled', code)
if x.s == 'p' or get('run') ~= c then return { 'accepted', 'answered' } end
if x.k == 's' then set('st', 'f') answer_parked('cancelled', code) end
return with({ 'accepted', 'answered' }, advance())
