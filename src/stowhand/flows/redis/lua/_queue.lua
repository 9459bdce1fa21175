-- Common part of all scripts of a queue. ARGV[1] is the queue as JSON: its rules and the prefixes of its keys
-- (layout.py).
local queue = cjson.decode(ARGV[1])
queue.locks = queue.prefix .. 'lock:' .. queue.name .. ':' -- followed by the id
queue.dead = queue.prefix .. 'dead:' -- followed by a claim token, which can claim no more jobs
queue.leases = not queue.lasting and queue.prefix .. 'lease:' -- followed by a claim token, if locks outlive their lease
local RETRIES, RESETS = 'retries:' .. queue.name, 'resets:' .. queue.name
local LISTS, QUEUES = 'lookups:lists', 'children:queues' -- keys that expire with a job: see _life.lua
local CANCEL = 'flow:cancel' -- 'true': a cancellation was requested while the job ran (cancel.lua)
local STATE = 'flow:state' -- JSON text "<state>:<queue>", written by every script that moves the job
local PASSED = 'flow:passed' -- classic: our own "completed-queue"; they differ if the original has moved the job on
local MAX_VALUES = 1000 -- maximum number of values in one call: a Lua stack has room for a few thousand
local SUSPECT_RESETS = 2 -- number of resets from which a job runs apart
local LEASED_SEPARATOR = '+:' -- separator of worker and token in a lock that outlives its lease
local HOUR_MS = 3600000 -- milliseconds

local moment -- read once, since a script is one atomic step
local function now_ms()
  if not moment then
    local time = redis.call('TIME')
    moment = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return moment
end

local written = {} -- text for a job of this queue, by state
local function state_of(state)
  written[state] = written[state] or cjson.encode(state .. ':' .. queue.name)
  return written[state]
end

local function set_state(id, state)
  redis.call('HSET', queue.hashes .. id, STATE, state_of(state))
end

-- Parses a count; 0 for any other value.
local function count(text)
  return text and #text <= 9 and string.match(text, '^%d+$') and tonumber(text) or 0
end

-- Returns the limiter's group of a value.
local function group_of(value)
  local ok, plain = pcall(cjson.decode, value or '')
  if not ok or plain == cjson.null then
    return 'default'
  end
  return type(plain) == 'string' and plain or value
end

-- Sets the key prefixes of a limiter's counters. The group follows, and for calls also the window.
local function name_counters(limiter, name)
  local counters = queue.prefix .. 'counter:delay:'
  limiter.calls = counters .. 'calls:' .. name .. ':'
  limiter.enqueued = counters .. 'enqueued:' .. limiter.id .. ':'
  limiter.tickets = counters .. 'tickets:' .. limiter.id .. ':'
end
if queue.limiter then
  name_counters(queue.limiter, queue.name)
end

-- A limiter counts the jobs that wait for one of its windows. Removes this job from the count.
local function uncount(limiter, hash)
  local reason, value = unpack(redis.call('HMGET', hash, 'delayReason', limiter.group or 'delayReason'))
  if reason ~= limiter.reason then
    return
  end
  local waiting = limiter.enqueued .. (limiter.group and group_of(value) or 'default')
  if count(redis.call('GET', waiting)) > 0 then
    redis.call('DECR', waiting)
  end
end

-- Returns the text of an error that ``pcall`` has caught: a table, or a text on older servers.
local function error_text(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

local function is_ours(lock, token)
  return lock and string.sub(lock, -#token - 1) == ':' .. token
end

-- Returns the locks of these ids in their order, false for a missing one; and the value of another key, read in the
-- same call.
local function locks_of(ids, also)
  local found, other = {}, nil
  for from = 1, #ids, MAX_VALUES do
    local keys = {}
    for place = from, math.min(from + MAX_VALUES - 1, #ids) do
      keys[#keys + 1] = queue.locks .. ids[place]
    end
    local read = #keys
    keys[read + 1] = also
    local values = redis.call('MGET', unpack(keys))
    for place = 1, read do
      found[#found + 1] = values[place]
    end
    other = values[read + 1]
  end
  return found, other
end

-- Returns the reason why a job cannot be read; nil if its key is not a hash.
local function read_error_of(row)
  local words = error_text(row)
  return not string.find(words, 'WRONGTYPE', 1, true) and words or nil
end

-- Returns some fields of a job; nil if its key is missing or not a hash; nil and a reason if it cannot be read (the
-- login lacks the permission). A job that cannot be read stays where it is.
local function fields_of(id, ...)
  local row = redis.pcall('HMGET', queue.hashes .. id, ...)
  if row.err then
    return nil, read_error_of(row)
  end
  for place = 1, select('#', ...) do
    if row[place] then
      return row
    end
  end
  return redis.call('EXISTS', queue.hashes .. id) == 1 and row or nil
end

-- Returns the base of the lists for a priority; for an undeclared priority, that of the nearest one.
local function base_of(bases, priority)
  local rank = math.floor(tonumber(priority or 1) or 1)
  return bases[math.max(1, math.min(rank, #bases))]
end

-- Returns the base of the lists of another queue of the flow, at a declared priority.
local function base_at(name, rank)
  return queue.prefix .. 'queue:' .. name .. (queue.ranked and ':' .. string.format('%d', rank) or '')
end

-- Removes a job from processing: one entry, which is fast, or with 0 all of its entries. Returns the base; nil if no
-- list contained the job.
local function remove_from_processing(id, priority, times)
  local likely = base_of(queue.bases, priority)
  if redis.call('LREM', likely .. ':processing', times, id) > 0 then
    return likely
  end
  for _, base in ipairs(queue.bases) do
    if base ~= likely and redis.call('LREM', base .. ':processing', times, id) > 0 then
      return base
    end
  end
end

-- Adds a job to the suspects. The one that has waited longest is at the head.
local function add_suspect(id)
  return type(redis.pcall('RPUSH', queue.root .. ':suspects', id)) == 'number'
end

local MAX_COMPARED_JOBS = 32 -- maximum number of returned jobs at the head that are compared

-- Puts a returned job where it was before: behind returned jobs that were claimed earlier. Several calls may return the
-- jobs of one claim.
local function to_front(id, base, order)
  local list, back = base .. ':waiting', base .. ':returned'
  local pivot
  for _, other in ipairs(redis.call('LRANGE', list, 0, MAX_COMPARED_JOBS - 1)) do
    local score = redis.call('ZSCORE', back, other)
    if not score or tonumber(score) > order then
      break
    end
    pivot = other
  end
  if pivot then
    redis.call('LINSERT', list, 'AFTER', pivot, id)
  else
    redis.call('LPUSH', list, id)
  end
  redis.call('ZADD', back, string.format('%d', order), id)
  redis.call('PEXPIRE', back, 5000)
end

-- Wakes the timekeeper (due.lua), since another job is due next. One entry is enough.
local function ring_bell()
  if redis.call('EXISTS', queue.root .. ':bell') == 0 then
    redis.call('RPUSH', queue.root .. ':bell', '1')
    redis.call('PEXPIRE', queue.root .. ':bell', 10000) -- there may be no timekeeper to read it
  end
end

-- Delays a job. It must not expire before it is ready, nor soon after.
local function delay_until(ready, base, id, now)
  local hash, delay = queue.hashes .. id, ready - now
  redis.call('ZADD', base .. ':delayed', string.format('%d', ready), id)
  set_state(id, 'delayed')
  if redis.call('ZRANGE', base .. ':delayed', 0, 0)[1] == id then
    ring_bell()
  end
  local left = redis.call('PTTL', hash)
  if left >= 0 and left < delay + math.min(queue.key_life, HOUR_MS) then
    redis.call('PEXPIRE', hash, string.format('%d', delay + queue.key_life))
  end
end

-- Moves unclaimed delayed jobs that are ready to the front, the oldest first. This wakes workers that block there.
local function promote(base, now)
  local ready = redis.call('ZRANGEBYSCORE', base .. ':delayed', '-inf', now, 'LIMIT', 0, MAX_VALUES)
  if #ready == 0 then
    return
  end
  local oldest_last = {}
  for place = #ready, 1, -1 do
    oldest_last[#oldest_last + 1] = ready[place]
  end
  redis.call('LPUSH', base .. ':waiting', unpack(oldest_last)) -- before ZREM: if the push is refused, the jobs stay delayed
  redis.call('ZREM', base .. ':delayed', unpack(ready))
end
