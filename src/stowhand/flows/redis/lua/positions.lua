-- Who stands where in one queue, in one moment. KEYS: its root. ARGV: how many of each kind, the addresses of its
-- priorities' lists. Gives for each priority ids that wait, that are processed, that are delayed (each with when it is
-- ready), that are parked; at last, those that run apart.
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
  local base, delayed = ARGV[place], {}
  local scored = redis.call('ZRANGE', base .. ':delayed', 0, last, 'WITHSCORES')
  for at = 1, #scored, 2 do
    delayed[#delayed + 1] = { scored[at], scored[at + 1] }
  end
  found[#found + 1] = {
    first_of(base .. ':moved', base .. ':waiting'),
    redis.call('LRANGE', base .. ':processing', 0, last),
    delayed,
    redis.call('ZRANGE', base .. ':parked', 0, last),
  }
end
found[#found + 1] = redis.call('LRANGE', KEYS[1] .. ':suspects', 0, last)
return found
