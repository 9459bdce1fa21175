-- Keep new jobs, make them findable, and put them into their queue: all of them in this one step.
-- KEYS: any of the flow; classic: the mark whose the queue is. ARGV: what the flow's hashes begin with, their life in
-- ms, '1' where they tell when they were made, the flow, then for each job: id, address of its list, milliseconds until
-- it may start (0: at once), number of values, field, value, …, number of lookup lists, list, …
-- A job that is there already was made by an earlier try, whose reply was lost: it is left as it is. Where one cannot be
-- made (a key of a wrong type, a missing permission), none is.
-- Gives 1; or 0, and then none is made: the queue is another flow's.
local hashes, life, dated = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local CHUNK = 1000 -- values in one call: a Lua stack has room for some thousands
local LONG = 32 -- a lookup list of this length may begin with jobs that have expired
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function put(hash, first, last)
  for from = first, last, CHUNK do
    redis.call('HSET', hash, unpack(ARGV, from, math.min(from + CHUNK - 1, last)))
  end
end

-- Two are forgotten for each that comes, so a list that is used is never much longer than what is to be found in it.
local function forget_expired(list)
  for _ = 1, 16 do
    local oldest = redis.call('LINDEX', list, 0)
    if not oldest or redis.call('EXISTS', hashes .. oldest) == 1 then
      return
    end
    redis.call('LPOP', list)
  end
end

local function make_findable(id, first, last, delay)
  for place = first, last do
    local length = redis.call('RPUSH', ARGV[place], id)
    local left = length > 1 and redis.call('PTTL', ARGV[place]) or 0
    if left < life + delay then
      redis.call('PEXPIRE', ARGV[place], string.format('%d', life + delay))
    end
    if length > LONG and length % 8 == 0 then
      forget_expired(ARGV[place])
    end
  end
end

local pushes, lists = {}, {}
local function enqueue(base, id)
  if not pushes[base] then
    pushes[base] = {}
    lists[#lists + 1] = base
  end
  table.insert(pushes[base], id)
end

local made = {} -- id, base of its list, places of its lookup lists: from, to

-- Gives where the next one begins.
local function make(place)
  local id, base, delay, values = ARGV[place], ARGV[place + 1], tonumber(ARGV[place + 2]), tonumber(ARGV[place + 3])
  local found = place + 4 + values -- the number of lookup lists stands here
  local hash, last = hashes .. id, found + tonumber(ARGV[found])
  if redis.call('EXISTS', hash) == 0 then
    made[#made + 1] = { id, base, found + 1, last }
    put(hash, place + 4, found - 1)
    if dated or values == 0 then -- a hash without fields would be none
      redis.call('HSET', hash, 'createdAtTimestamp', string.format('%d', now))
    end
    if delay > 0 then
      local ready = string.format('%d', now + delay)
      redis.call(
        'HSET', hash, 'delay', 'true', 'delayReason', '"created with a delay"', 'delayReadyTimestamp', ready
      )
      redis.call('ZADD', base .. ':delayed', ready, id)
    else
      enqueue(base, id)
    end
    redis.call('PEXPIRE', hash, string.format('%d', life + delay)) -- from when it may start
    make_findable(id, found + 1, last, delay)
  end
  return last + 1
end

local function make_all()
  local place = 5
  while ARGV[place] do
    place = make(place)
  end
  for _, base in ipairs(lists) do
    for from = 1, #pushes[base], CHUNK do
      redis.call('RPUSH', base .. ':waiting', unpack(pushes[base], from, math.min(from + CHUNK - 1, #pushes[base])))
    end
  end
end

local function unmake(id, base, first, last)
  redis.call('DEL', hashes .. id)
  redis.pcall('ZREM', base .. ':delayed', id)
  redis.pcall('LREM', base .. ':waiting', -1, id)
  for place = first, last do
    redis.pcall('LREM', ARGV[place], -1, id)
  end
end

local owner = KEYS[2] and redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[4] then
  return 0
end
local sound, trouble = pcall(make_all)
if sound then
  return 1
end
for _, one in ipairs(made) do
  unmake(unpack(one))
end
return { err = type(trouble) == 'table' and trouble.err or tostring(trouble) }
