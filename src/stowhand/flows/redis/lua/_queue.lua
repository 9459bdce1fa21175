-- What every script of a queue begins with. ARGV[1] is the queue as JSON (its rules and the prefixes of its keys; see layout.py).
local queue = cjson.decode(ARGV[1])
queue.locks = queue.prefix .. 'lock:' .. queue.name .. ':' -- the id follows
queue.dead = queue.prefix .. 'dead:' -- a claim's token follows: it claims nothing more
queue.leases = not queue.lasting and queue.prefix .. 'lease:' -- a claim's token follows, whose locks outlive its lease
local RETRIES, RESETS = 'retries:' .. queue.name, 'resets:' .. queue.name
local LISTS, QUEUES = 'lookups:lists', 'children:queues' -- what ends with a job: see _life.lua
local CANCEL = 'flow:cancel' -- 'true': the job was asked to cancel while it ran (cancel.lua)
local STATE = 'flow:state' -- JSON text "<state>:<queue>", written by every script that moves the job
local PASSED = 'flow:passed' -- classic: "completed-queue" as we wrote it; they differ where the original has moved the job on
local CHUNK = 1000 -- values in one call: a Lua stack has room for some thousands
local SUSPECT = 2 -- a job reset this often runs apart
local LEASED = '+:' -- in a lock that outlives its lease, between worker and token
local HOUR = 3600000 -- milliseconds

local moment -- asked once: a script is one step
local function now_ms()
  if not moment then
    local time = redis.call('TIME')
    moment = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return moment
end

local written = {} -- by state: its text for a job of this queue
local function state_of(state)
  written[state] = written[state] or cjson.encode(state .. ':' .. queue.name)
  return written[state]
end

local function set_state(id, state)
  redis.call('HSET', queue.hashes .. id, STATE, state_of(state))
end

-- A value that may be anything, as a number from 0.
local function count(text)
  return text and #text <= 9 and string.match(text, '^%d+$') and tonumber(text) or 0
end

-- Which of a limiter's groups a value is of.
local function group_of(value)
  local sound, plain = pcall(cjson.decode, value or '')
  if not sound or plain == cjson.null then
    return 'default'
  end
  return type(plain) == 'string' and plain or value
end

-- The names of a limiter's counters; the group follows, of calls also the window.
local function name_counters(limiter, name)
  local counters = queue.prefix .. 'counter:delay:'
  limiter.calls = counters .. 'calls:' .. name .. ':'
  limiter.enqueued = counters .. 'enqueued:' .. limiter.id .. ':'
  limiter.tickets = counters .. 'tickets:' .. limiter.id .. ':'
end
if queue.limiter then
  name_counters(queue.limiter, queue.name)
end

-- A limiter counts those that wait for one of its windows: this one does not any more.
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

-- The words of what a `pcall` has caught: a table, or of older servers a text.
local function words_of(trouble)
  return type(trouble) == 'table' and trouble.err or tostring(trouble)
end

local function is_ours(lock, token)
  return lock and string.sub(lock, -#token - 1) == ':' .. token
end

-- The locks of these ids, in their order; false where there is none. And the value of another key, read along.
local function locks_of(ids, also)
  local found, other = {}, nil
  for from = 1, #ids, CHUNK do
    local keys = {}
    for place = from, math.min(from + CHUNK - 1, #ids) do
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

-- Why a job cannot be read; nil where something else than a hash has its name.
local function hidden(row)
  local words = words_of(row)
  return not string.find(words, 'WRONGTYPE', 1, true) and words or nil
end

-- Some fields of a job; nil when there is no such hash, whatever else may have its name; nil and a reason when it
-- cannot be read (the login lacks the permission): such a job stays where it is.
local function fields_of(id, ...)
  local row = redis.pcall('HMGET', queue.hashes .. id, ...)
  if row.err then
    return nil, hidden(row)
  end
  for place = 1, select('#', ...) do
    if row[place] then
      return row
    end
  end
  return redis.call('EXISTS', queue.hashes .. id) == 1 and row or nil
end

-- Where a job of this priority lies; one beyond the queue's own priorities lies with the nearest.
local function base_of(bases, priority)
  local rank = math.floor(tonumber(priority or 1) or 1)
  return bases[math.max(1, math.min(rank, #bases))]
end

-- The address of the lists of another queue of the flow, at a priority that it has.
local function base_at(name, rank)
  return queue.prefix .. 'queue:' .. name .. (queue.ranked and ':' .. string.format('%d', rank) or '')
end

-- Take it out of processing: once (quick), or with 0 however often it stands there. Gives where it was; nil when it was
-- nowhere.
local function take_from_processing(id, priority, times)
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

-- Of those who could run apart the one that has waited longest is at the head.
local function suspect(id)
  return type(redis.pcall('RPUSH', queue.root .. ':suspects', id)) == 'number'
end

local LOOKED_AT = 32 -- who stands at the head and has come back just now

-- Where it stood before: behind those that have come back before it and were claimed earlier. Several calls give back
-- what one claim has brought.
local function to_front(id, base, order)
  local list, back = base .. ':waiting', base .. ':returned'
  local pivot
  for _, other in ipairs(redis.call('LRANGE', list, 0, LOOKED_AT - 1)) do
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

-- Wake the timekeeper (due.lua), since another job falls due next. One entry is enough.
local function ring()
  if redis.call('EXISTS', queue.root .. ':bell') == 0 then
    redis.call('RPUSH', queue.root .. ':bell', '1')
    redis.call('PEXPIRE', queue.root .. ':bell', 10000) -- there may be no timekeeper to read it
  end
end

-- A job must not expire before it is ready, nor soon after.
local function delay_until(ready, base, id, now)
  local hash, delay = queue.hashes .. id, ready - now
  redis.call('ZADD', base .. ':delayed', string.format('%d', ready), id)
  set_state(id, 'delayed')
  if redis.call('ZRANGE', base .. ':delayed', 0, 0)[1] == id then
    ring()
  end
  local left = redis.call('PTTL', hash)
  if left >= 0 and left < delay + math.min(queue.key_life, HOUR) then
    redis.call('PEXPIRE', hash, string.format('%d', delay + queue.key_life))
  end
end

-- Delayed jobs that are ready and unclaimed go to the front, the oldest first, which wakes workers that block there.
local function promote(base, now)
  local ready = redis.call('ZRANGEBYSCORE', base .. ':delayed', '-inf', now, 'LIMIT', 0, CHUNK)
  if #ready == 0 then
    return
  end
  local turned = {}
  for place = #ready, 1, -1 do
    turned[#turned + 1] = ready[place]
  end
  redis.call('LPUSH', base .. ':waiting', unpack(turned)) -- first: where it is refused, they stay
  redis.call('ZREM', base .. ':delayed', unpack(ready))
end
