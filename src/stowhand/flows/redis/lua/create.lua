-- Create jobs with their lookups, and put them into the queue, atomically.
-- KEYS: any key of the flow; classic: also the key with the owner of the queue. ARGV: prefix of the flow's hashes;
-- their life in milliseconds; '1' if only Stowhand serves the flow (then hashes contain their creation time, and live
-- until the job has ended); the flow; prefix of all keys; root of the queue; maximum number of waiting jobs; name of
-- the queue. Then for each job: id, base of its list, milliseconds until it may start (0: at once), list of its key
-- ('': it has none), number of values, field, value, …, number of lookup lists (including that of its key), list, … A
-- job that exists was created by an earlier call without a reply, and is not changed. If a job with the same key has
-- not ended, its id is returned and no job is created. If one job cannot be created (a key of a wrong type, a missing
-- permission), none is. Returns {1, id of each job}; or, without creating any job, {0}: another flow owns the queue;
-- {-1}: the queue is full.
local hashes, life, lasting = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local prefix, root, max_waiting, queue = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local QUEUE_FULL = 'QUEUE_FULL'
local MAX_VALUES = 1000 -- maximum number of values in one call: a Lua stack has room for a few thousand
local MIN_CHECKED_LENGTH = 32 -- length from which a lookup list is checked for expired jobs at its head
local now
local function now_ms()
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now
end

-- Writes the fields of ARGV from ``first`` to ``last`` into a hash, with ``fields`` in the first call.
local function put(hash, first, last, fields)
  local from = first
  repeat
    for place = from, math.min(from + MAX_VALUES - 1, last) do
      fields[#fields + 1] = ARGV[place]
    end
    redis.call('HSET', hash, unpack(fields))
    from, fields = from + MAX_VALUES, {}
  until from > last
end

-- Removes up to 16 expired jobs from the head of a list. It is called for every eighth new job, so that two may go for
-- each that comes, and a list is never much longer than the number of its live jobs.
local function forget_expired(list)
  for _ = 1, 16 do
    local oldest = redis.call('LINDEX', list, 0)
    if not oldest or redis.call('EXISTS', hashes .. oldest) == 1 then
      return
    end
    redis.call('LPOP', list)
  end
end

-- Returns the key of the counter of jobs in a list that have not ended (_life.lua).
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

local function add_lookups(id, first, last, delay)
  for place = first, last do
    local length = redis.call('RPUSH', ARGV[place], id)
    keep_list(ARGV[place], length, delay)
    if length > MIN_CHECKED_LENGTH and length % 8 == 0 then
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

-- Returns the script's own fields of a new job: state, creation time, and lookup lists for the script that ends it.
local function own_fields(state, first, last)
  local fields = { 'flow:state', cjson.encode(state .. ':' .. queue) }
  if lasting then
    fields[3], fields[4] = 'createdAtTimestamp', string.format('%d', now_ms())
  end
  if lasting and last >= first then
    fields[5], fields[6] = 'lookups:lists', cjson.encode({ unpack(ARGV, first, math.min(first + MAX_VALUES - 1, last)) })
  end
  return fields
end

-- Returns the job with this key that has not ended. Without one, deletes the list.
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

-- Delays a new job. Wakes the timekeeper if this job is due next (``ring_bell`` in _queue.lua).
local function postpone(hash, base, id, ready)
  if redis.call('ZCARD', base .. ':delayed') >= max_waiting then
    error(QUEUE_FULL, 0)
  end
  local text = string.format('%d', ready)
  redis.call('HSET', hash, 'delay', 'true', 'delayReason', '"created with a delay"', 'delayReadyTimestamp', text)
  redis.call('ZADD', base .. ':delayed', text, id)
  if redis.call('ZRANGE', base .. ':delayed', 0, 0)[1] == id and redis.call('EXISTS', root .. ':bell') == 0 then
    redis.call('RPUSH', root .. ':bell', '1')
    redis.call('PEXPIRE', root .. ':bell', 10000)
  end
end

local created = {} -- for each created job: id, base of its list, first and last position of its lookup lists in ARGV
local reply = { 1 }

-- Creates the job whose arguments begin at ``place``. Returns the position of the next job.
local function create(place)
  local id, base, delay, key = ARGV[place], ARGV[place + 1], tonumber(ARGV[place + 2]), ARGV[place + 3]
  local lookups_at = place + 5 + tonumber(ARGV[place + 4]) -- position of the number of lookup lists
  local hash, last = hashes .. id, lookups_at + tonumber(ARGV[lookups_at])
  local holder = key ~= '' and holder_of(key)
  reply[#reply + 1] = holder or id
  if not holder and redis.call('EXISTS', hash) == 0 then
    created[#created + 1] = { id, base, lookups_at + 1, last }
    put(hash, place + 5, lookups_at - 1, own_fields(delay > 0 and 'delayed' or 'waiting', lookups_at + 1, last))
    if delay > 0 then
      postpone(hash, base, id, now_ms() + delay)
    else
      enqueue(base, id)
    end
    if not lasting then
      redis.call('PEXPIRE', hash, string.format('%d', life + delay)) -- its life begins when it may start
    end
    add_lookups(id, lookups_at + 1, last, delay)
  end
  return last + 1
end

local function create_all()
  local place = 9
  while ARGV[place] do
    place = create(place)
  end
  local length = 0
  for _, base in ipairs(lists) do
    for from = 1, #pushes[base], MAX_VALUES do
      length = redis.call('RPUSH', base .. ':waiting', unpack(pushes[base], from, math.min(from + MAX_VALUES - 1, #pushes[base])))
    end
    if length > max_waiting then
      error(QUEUE_FULL, 0)
    end
  end
end

local function undo(id, base, first, last)
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
local ok, problem = pcall(create_all)
if ok then
  return reply
end
for _, job in ipairs(created) do
  undo(unpack(job))
end
if problem == QUEUE_FULL then
  return { -1 }
end
return { err = type(problem) == 'table' and problem.err or tostring(problem) }
