-- Keep new jobs, make them findable, and put them into their queue: all of them in this one step.
-- KEYS: any of the flow; classic: the mark whose the queue is. ARGV: what the flow's hashes begin with, their life in
-- ms, '1' where every worker is ours (then they tell when they were made, and live until they have ended), the flow,
-- what every key begins with, the root of the queue, how many may wait there, the queue's name, then for each job: id,
-- address of its list, milliseconds until it may start (0: at once), address of the list of its key ('': it has none),
-- number of values, field, value, …, number of lookup lists (that of its key among them), list, …
-- A job that is there already was made by an earlier try, whose reply was lost: it is left as it is. Where a job with the
-- same key has not ended, none is made. Where one cannot be made (a key of a wrong type, a missing permission), none is.
-- Gives {1, the id of each}; or, and then none is made, {0}: the queue is another flow's; {-1}: it is full.
local hashes, life, lasting = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local prefix, root, most, queue = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local FULL = 'FULL'
local CHUNK = 1000 -- values in one call: a Lua stack has room for some thousands
local LONG = 32 -- a lookup list of this length may begin with jobs that have expired
local now
local function now_ms()
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now
end

-- With ``facts`` in the first call.
local function put(hash, first, last, facts)
  local from = first
  repeat
    for place = from, math.min(from + CHUNK - 1, last) do
      facts[#facts + 1] = ARGV[place]
    end
    redis.call('HSET', hash, unpack(facts))
    from, facts = from + CHUNK, {}
  until from > last
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

-- Who is in the list and has not ended is counted (_life.lua).
local function counter_of(list)
  return prefix .. 'open:' .. string.sub(list, #prefix + #'job:' + 1)
end

local function keep_list(list, length, delay)
  if lasting then
    redis.call('INCR', counter_of(list))
    redis.call('PERSIST', list)
    return
  end
  local left = length > 1 and redis.call('PTTL', list) or 0
  if left < life + delay then
    redis.call('PEXPIRE', list, string.format('%d', life + delay))
  end
end

local function make_findable(id, first, last, delay)
  for place = first, last do
    local length = redis.call('RPUSH', ARGV[place], id)
    keep_list(ARGV[place], length, delay)
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

-- Its state; when it was made; in which lists it can be found, for the script that ends it.
local function facts_of(state, first, last)
  local facts = { 'flow:state', cjson.encode(state .. ':' .. queue) }
  if lasting then
    facts[3], facts[4] = 'createdAtTimestamp', string.format('%d', now_ms())
  end
  if lasting and last >= first then
    facts[5], facts[6] = 'lookups:lists', cjson.encode({ unpack(ARGV, first, math.min(first + CHUNK - 1, last)) })
  end
  return facts
end

-- The job of this key that has not ended. A key without one begins anew.
local function holder_of(list)
  for _, id in ipairs(redis.call('LRANGE', list, 0, -1)) do
    local row = redis.call('HMGET', hashes .. id, 'flow:state', 'failed')
    local state = row[1] and string.match(row[1], '^"(%a+):')
    if state and not row[2] and state ~= 'completed' and state ~= 'failed' and state ~= 'canceled' then
      return id
    end
  end
  redis.call('DEL', list)
end

-- Wakes the timekeeper where this job is the first that falls due (_queue.lua: ring).
local function postpone(hash, base, id, ready)
  if redis.call('ZCARD', base .. ':delayed') >= most then
    error(FULL, 0)
  end
  local text = string.format('%d', ready)
  redis.call('HSET', hash, 'delay', 'true', 'delayReason', '"created with a delay"', 'delayReadyTimestamp', text)
  redis.call('ZADD', base .. ':delayed', text, id)
  if redis.call('ZRANGE', base .. ':delayed', 0, 0)[1] == id and redis.call('EXISTS', root .. ':bell') == 0 then
    redis.call('RPUSH', root .. ':bell', '1')
    redis.call('PEXPIRE', root .. ':bell', 10000)
  end
end

local made = {} -- id, base of its list, places of its lookup lists: from, to
local reply = { 1 }

-- Gives where the next one begins.
local function make(place)
  local id, base, delay, key = ARGV[place], ARGV[place + 1], tonumber(ARGV[place + 2]), ARGV[place + 3]
  local found = place + 5 + tonumber(ARGV[place + 4]) -- the number of lookup lists stands here
  local hash, last = hashes .. id, found + tonumber(ARGV[found])
  local holder = key ~= '' and holder_of(key)
  reply[#reply + 1] = holder or id
  if not holder and redis.call('EXISTS', hash) == 0 then
    made[#made + 1] = { id, base, found + 1, last }
    put(hash, place + 5, found - 1, facts_of(delay > 0 and 'delayed' or 'waiting', found + 1, last))
    if delay > 0 then
      postpone(hash, base, id, now_ms() + delay)
    else
      enqueue(base, id)
    end
    if not lasting then
      redis.call('PEXPIRE', hash, string.format('%d', life + delay)) -- from when it may start
    end
    make_findable(id, found + 1, last, delay)
  end
  return last + 1
end

local function make_all()
  local place = 9
  while ARGV[place] do
    place = make(place)
  end
  local length = 0
  for _, base in ipairs(lists) do
    for from = 1, #pushes[base], CHUNK do
      length = redis.call('RPUSH', base .. ':waiting', unpack(pushes[base], from, math.min(from + CHUNK - 1, #pushes[base])))
    end
    if length > most then
      error(FULL, 0)
    end
  end
end

local function unmake(id, base, first, last)
  redis.call('DEL', hashes .. id)
  redis.pcall('ZREM', base .. ':delayed', id)
  redis.pcall('LREM', base .. ':waiting', -1, id)
  for place = first, last do
    if redis.pcall('LREM', ARGV[place], -1, id) == 1 and lasting and redis.call('DECR', counter_of(ARGV[place])) == 0 then
      redis.call('DEL', counter_of(ARGV[place]))
    end
  end
end

local owner = KEYS[2] and redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[4] then
  return { 0 }
end
local sound, trouble = pcall(make_all)
if sound then
  return reply
end
for _, one in ipairs(made) do
  unmake(unpack(one))
end
if trouble == FULL then
  return { -1 }
end
return { err = type(trouble) == 'table' and trouble.err or tostring(trouble) }
