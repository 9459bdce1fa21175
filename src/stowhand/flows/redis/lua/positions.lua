-- Return the positions of jobs in one queue, atomically. KEYS: its root. ARGV: the maximum number of ids in each state,
-- then the base of each priority. Returns for each priority the ids that wait, are processed, are delayed (each with
-- the time at which it is ready), and are parked; and at the end the suspects.
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

local rows = {}
for place = 2, #ARGV do
  local base, delayed = ARGV[place], {}
  local scored = redis.call('ZRANGE', base .. ':delayed', 0, last, 'WITHSCORES')
  for at = 1, #scored, 2 do
    delayed[#delayed + 1] = { scored[at], scored[at + 1] }
  end
  rows[#rows + 1] = {
    first_of(base .. ':moved', base .. ':waiting'),
    redis.call('LRANGE', base .. ':processing', 0, last),
    delayed,
    redis.call('ZRANGE', base .. ':parked', 0, last),
  }
end
rows[#rows + 1] = redis.call('LRANGE', KEYS[1] .. ':suspects', 0, last)
return rows
