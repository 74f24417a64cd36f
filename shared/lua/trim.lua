-- trim: drops results that every consumer group has acknowledged, and groups that nobody reads any more. Never MAXLEN.
-- Without a group, entries older than results_ttl go. A group all of whose consumers were idle longer than group_ttl is destroyed.
-- KEYS 1 stream 2 streams(zset reply_to -> ms of its last seed). ARGV 1 most entries to drop in one call 2 results_ttl_ms 3 group_ttl_ms 4 reply_to
-- returns { dropped, destroyed groups, name of each, blob key... }: the caller shortens those blobs' ttl to receipt_ms
local t = redis.call('TIME')
local ms = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
if redis.call('EXISTS', KEYS[1]) == 0 then
  -- A session that was seeded long ago may still answer there: its name is kept for a month more.
  if tonumber(redis.call('ZSCORE', KEYS[2], ARGV[4]) or 0) + tonumber(ARGV[2]) + 2592000000 < ms then redis.call('ZREM', KEYS[2], ARGV[4]) end
  return { 0, 0 }
end
local function num(a) local m, s = string.match(a, '(%d+)-(%d+)') return tonumber(m), tonumber(s) end
local function lt(a, b) local am, as = num(a) local bm, bs = num(b) if am ~= bm then return am < bm end return as < bs end
local function pairsof(list) local m = {} for i = 1, #list, 2 do m[list[i]] = list[i + 1] end return m end
-- how long nobody has read for this group; a group that never had a consumer is as old as the entry it has not read
local function idle(group)
  local least
  for _, c in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group.name)) do
    local quiet = tonumber(pairsof(c).idle)
    if not least or quiet < least then least = quiet end
  end
  if least then return least end
  local first = redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], '+', 'COUNT', 1)[1]
  return first and ms - num(first[1]) or 0
end
local min
local gone = {}
for _, g in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = pairsof(g)
  if idle(group) > tonumber(ARGV[3]) then
    redis.call('XGROUP', 'DESTROY', KEYS[1], group.name)
    gone[#gone + 1] = group.name
  else
    local low = group['last-delivered-id']
    if tonumber(group.pending) > 0 then low = redis.call('XPENDING', KEYS[1], group.name)[2] end
    if not min or lt(low, min) then min = low end
  end
end
-- without a group: up to the first entry that is young enough
local upto = min or string.format('%.0f', ms - tonumber(ARGV[2])) .. '-0'
local out, last = { 0, #gone, unpack(gone) }, nil
for _, e in ipairs(redis.call('XRANGE', KEYS[1], '-', upto, 'COUNT', ARGV[1])) do
  if e[1] == min then break end
  out[1] = out[1] + 1
  last = e[1]
  for i = 1, #e[2], 2 do if e[2][i] == 'b' and e[2][i + 1] ~= '' then out[#out + 1] = e[2][i + 1] end end
end
if last then redis.call('XTRIM', KEYS[1], 'MINID', '=', last) redis.call('XDEL', KEYS[1], last) end
if not min and redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[1]) end
return out
