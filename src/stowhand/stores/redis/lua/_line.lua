-- What every script of a queue begins with. ARGV[1] is the queue as JSON (address of its keys; see lines.py).
local line = cjson.decode(ARGV[1])
local RETRIES, RESETS = 'retries:' .. line.queue, 'resets:' .. line.queue
local CHUNK = 1000 -- values in one call: a Lua stack has room for some thousands
local SUSPECT = 2 -- a job reset this often runs apart
local HOUR = 3600000 -- milliseconds

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A value that may be anything, as a number from 0.
local function count(text)
  return text and #text <= 9 and string.match(text, '^%d+$') and tonumber(text) or 0
end

-- The words of what a `pcall` has caught: a table, or of older servers a text.
local function words_of(trouble)
  return type(trouble) == 'table' and trouble.err or tostring(trouble)
end

local function is_ours(lock, token)
  return lock and string.sub(lock, -#token - 1) == ':' .. token
end

-- The locks of these ids, in their order; false where there is none.
local function locks_of(ids)
  local found = {}
  for from = 1, #ids, CHUNK do
    local keys = {}
    for place = from, math.min(from + CHUNK - 1, #ids) do
      keys[#keys + 1] = line.locks .. ids[place]
    end
    for _, lock in ipairs(redis.call('MGET', unpack(keys))) do
      found[#found + 1] = lock
    end
  end
  return found
end

-- Why a job cannot be read; nil where something else than a hash has its name.
local function hidden(row)
  local words = words_of(row)
  return not string.find(words, 'WRONGTYPE', 1, true) and words or nil
end

-- Some fields of a job; nil when there is no such hash, whatever else may have its name; nil and a reason when nobody
-- can say (a login that may not read it): such a job stays where it is.
local function fields_of(id, ...)
  local row = redis.pcall('HMGET', line.hashes .. id, ...)
  if row.err then
    return nil, hidden(row)
  end
  for place = 1, select('#', ...) do
    if row[place] then
      return row
    end
  end
  return redis.call('EXISTS', line.hashes .. id) == 1 and row or nil
end

-- Where a job of this priority lies; one beyond the queue's own priorities lies with the nearest.
local function base_of(bases, priority)
  local rank = math.floor(tonumber(priority or 1) or 1)
  return bases[math.max(1, math.min(rank, #bases))]
end

-- Take it out of processing: once (quick), or with 0 however often it stands there. Gives where it was; nil when it was
-- nowhere.
local function leave(id, priority, times)
  local likely = base_of(line.bases, priority)
  if redis.call('LREM', likely .. ':processing', times, id) > 0 then
    return likely
  end
  for _, base in ipairs(line.bases) do
    if base ~= likely and redis.call('LREM', base .. ':processing', times, id) > 0 then
      return base
    end
  end
end

-- To the front: it was there before the others. False where that list takes nothing (it is something else): then it
-- stays in processing, where the sweep finds it.
local function give_back(id, base, resets)
  local list = resets >= SUSPECT and line.root .. ':suspects' or base .. ':waiting'
  if type(redis.pcall('LPUSH', list, id)) == 'number' then
    return true
  end
  redis.call('RPUSH', base .. ':processing', id)
  return false
end

-- A job must not expire before it is ready, nor soon after.
local function delay_until(ready, base, id, now)
  local hash, delay = line.hashes .. id, ready - now
  redis.call('ZADD', base .. ':delayed', string.format('%d', ready), id)
  local left = redis.call('PTTL', hash)
  if left >= 0 and left < delay + math.min(line.key_life, HOUR) then
    redis.call('PEXPIRE', hash, string.format('%d', delay + line.key_life))
  end
end

-- What has become ready goes to the front, the oldest first.
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
