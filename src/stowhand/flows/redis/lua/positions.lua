-- Who stands where in one queue, in one moment. KEYS: its root. ARGV: how many of each kind, the addresses of its
-- priorities' lists. Gives for each priority: length of waiting, ids that wait, that are processed, that are delayed
-- (each followed by when it is ready), that are parked; at last, those that run apart.
local last = tonumber(ARGV[1]) - 1
local function first_of(...)
  local ids = {}
  for _, list in ipairs({ ... }) do
    for _, id in ipairs(redis.call('LRANGE', list, 0, last)) do
      ids[#ids + 1] = id
    end
  end
  return ids
end

local found = {}
for place = 2, #ARGV do
  local base = ARGV[place]
  found[#found + 1] = {
    redis.call('LLEN', base .. ':moved') + redis.call('LLEN', base .. ':waiting'),
    first_of(base .. ':moved', base .. ':waiting'),
    redis.call('LRANGE', base .. ':processing', 0, last),
    redis.call('ZRANGE', base .. ':delayed', 0, last, 'WITHSCORES'),
    redis.call('ZRANGE', base .. ':parked', 0, last),
  }
end
found[#found + 1] = redis.call('LRANGE', KEYS[1] .. ':suspects', 0, last)
return found
