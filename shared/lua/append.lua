-- append: the fenced journal of one activation. Before each outward act (model call, tool exec, MCP call) its intent, after it its outcome. Marks the record when tool or MCP acts begin.
-- KEYS 1 record 2 journal (stream {hf}:j:<sk>.<n>). ARGV 1 cid 2 fence 3 intent|outcome 4 model|tool|mcp 5 act id (unique within the fence) 6 data 7 keep_ms (how long the journal outlives the session's deadline)
-- returns {'ok'} | {'fenced'} nothing written: the run must stop | {'cancelled', code} to an intent only, nothing written: the act must not begin (an outcome is stored)
-- An act may begin only after 'ok', and only while that answer is younger than lockDuration by the caller's own clock. A resent call may write its entry twice: readers keep the first per (f, a, p).
local r = redis.call('HMGET', KEYS[1], 'run', 'fe', 'su', 'ac', 'x:' .. ARGV[1], 'xp')
if r[1] ~= ARGV[1] or r[2] ~= ARGV[2] then return { 'fenced' } end
if r[5] and ARGV[3] == 'intent' then return { 'cancelled', r[5] } end
local new = redis.call('EXISTS', KEYS[2]) == 0
redis.call('XADD', KEYS[2], '*', 'f', ARGV[2], 'p', ARGV[3], 'k', ARGV[4], 'a', ARGV[5], 'd', ARGV[6])
local t = redis.call('TIME')
local ms = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local hb = string.format('%.0f', ms)
if new then redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', math.max(ms, tonumber(r[6] or 0)) + tonumber(ARGV[7]))) end
if ARGV[3] == 'intent' and ARGV[4] ~= 'model' and not r[4] then redis.call('HSET', KEYS[1], 'hb', hb, 'ac', '1') else redis.call('HSET', KEYS[1], 'hb', hb) end
if r[3] then redis.call('HDEL', KEYS[1], 'su') end
return { 'ok' }
