-- What every script of a queue begins with. ARGV[1] is the queue as JSON (address of its keys; see lines.py).
local line = cjson.decode(ARGV[1])
local RETRIES, RESETS = 'retries:' .. line.queue, 'resets:' .. line.queue
local CHUNK = 1000 -- values in one call: a Lua stack has room for some thousands
local SUSPECT = 2 -- a job reset this often runs apart

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A value that may be anything, as a number.
local function count(text)
  return tonumber(text or 0) or 0
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

-- Some fields of a job; nil when there is no such hash, whatever else may have its name.
local function fields_of(id, ...)
  local row = redis.pcall('HMGET', line.hashes .. id, ...)
  if row.err then
    return nil
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

-- Take it out of processing. Gives where it was; nil when it was nowhere.
local function leave(id, priority)
  local likely = base_of(line.bases, priority)
  if redis.call('LREM', likely .. ':processing', 1, id) == 1 then
    return likely
  end
  for _, base in ipairs(line.bases) do
    if base ~= likely and redis.call('LREM', base .. ':processing', 1, id) == 1 then
      return base
    end
  end
end

-- To the front: it was there before the others.
local function give_back(id, base, resets)
  if resets >= SUSPECT then
    redis.call('LPUSH', line.root .. ':suspects', id)
  else
    redis.call('LPUSH', base .. ':waiting', id)
  end
end

-- What has become ready goes to the front, the oldest first.
local function promote(base, now)
  local ready = redis.call('ZRANGEBYSCORE', base .. ':delayed', '-inf', now, 'LIMIT', 0, CHUNK)
  if #ready == 0 then
    return
  end
  redis.call('ZREM', base .. ':delayed', unpack(ready))
  local turned = {}
  for place = #ready, 1, -1 do
    turned[#turned + 1] = ready[place]
  end
  redis.call('LPUSH', base .. ':waiting', unpack(turned))
end
