-- with: line
-- Take up to ``limit`` due jobs, in the order of priorities and lists: into processing, each under its lock.
-- ARGV: line, token, worker, limit, milliseconds of the lock, 'suspects' or ''.
-- Gives {microseconds now, 1 where there may be more to take, row …}; a row is the wanted fields (or all: name, value,
-- …), then the id and the place of its priority.
local token, limit, life, apart = ARGV[2], tonumber(ARGV[4]), ARGV[5], ARGV[6] == 'suspects'
local owner = ARGV[3] .. ':' .. token
local MOST = 2000 -- ids looked at in one call: ghosts and delayed jobs take time too
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply = { time[1] .. string.format('%06d', time[2]), 0 }
if redis.call('EXISTS', line.dead .. token) == 1 then
  return reply
end

local limiter, fields = line.limiter, line.fields
local known = {} -- place of a field that the script itself looks at
for place, name in ipairs(fields or {}) do
  known[name] = known[name] or place
end

-- A job as it is to be answered, and how its fields are found by name; nil for one that is not there.
local function look(id)
  if fields then
    local row = fields_of(id, unpack(fields))
    return row, row and function(name) return row[known[name]] end
  end
  local row = redis.pcall('HGETALL', line.hashes .. id)
  if row.err or #row == 0 then
    return nil
  end
  local values = {}
  for place = 1, #row, 2 do
    values[row[place]] = row[place + 1]
  end
  return row, function(name) return values[name] end
end

local function group_of(value)
  local sound, plain = pcall(cjson.decode, value or '')
  if not sound or plain == cjson.null then
    return 'default'
  end
  return type(plain) == 'string' and plain or value
end

-- Too many in this window? Then it waits for one of the next: so many in each as the reservoir allows.
local function is_held_back(id, base, value)
  local group = limiter.group and group_of(value(limiter.group)) or 'default'
  local waiting = limiter.enqueued .. group
  if value('delay') and count(redis.call('GET', waiting)) > 0 then
    redis.call('DECR', waiting)
  end
  local window = math.floor(now / limiter.interval)
  local calls = limiter.calls .. group .. ':' .. string.format('%d', window)
  local called = redis.call('INCR', calls)
  redis.call('PEXPIRE', calls, 2 * limiter.interval)
  if called <= limiter.reservoir then
    return false
  end
  local before = redis.call('INCR', waiting) - 1
  local ready = (window + 1 + math.floor(before / limiter.reservoir)) * limiter.interval
  redis.call('PEXPIRE', waiting, ready - now + 2 * limiter.interval)
  redis.call('ZADD', base .. ':delayed', ready, id)
  redis.call(
    'HSET', line.hashes .. id, 'delay', 'true', 'delayReason', limiter.reason, 'delayReadyTimestamp', string.format('%d', ready)
  )
  return true
end

local mine = {}

local function take(rank, base, ids)
  local taken, suspects = {}, {}
  for _, id in ipairs(ids) do
    local row, value
    if not mine[id] then
      row, value = look(id)
    end
    if not row then
      -- A ghost: its hash was deleted, or has expired. Or it stood there twice, and one lock is for one of them.
    elseif not apart and count(value(RESETS)) >= SUSPECT then
      suspects[#suspects + 1] = id
    elseif not (limiter and is_held_back(id, base, value)) then
      if value('delay') then
        redis.call('HDEL', line.hashes .. id, 'delay', 'delayReason', 'delayReadyTimestamp')
      end
      redis.call('SET', line.locks .. id, owner, 'PX', life)
      mine[id] = true
      taken[#taken + 1] = id
      row[#row + 1], row[#row + 2] = id, rank
      reply[#reply + 1] = row
    end
  end
  if #taken > 0 then
    redis.call('RPUSH', base .. ':processing', unpack(taken))
  end
  if #suspects > 0 then
    redis.call('RPUSH', line.root .. ':suspects', unpack(suspects))
  end
end

local looked = 0
local function next_ids(list)
  local room = math.min(limit + 2 - #reply, MOST - looked, CHUNK)
  local ids = room > 0 and redis.call('LPOP', list, room)
  looked = looked + (ids and #ids or 0)
  return ids
end

if apart then
  local ids = next_ids(line.root .. ':suspects')
  while ids do
    for _, id in ipairs(ids) do
      local priority = line.ranked and redis.pcall('HGET', line.hashes .. id, 'priority')
      local base = base_of(line.bases, type(priority) == 'string' and priority or 1)
      take(1, base, { id })
    end
    ids = next_ids(line.root .. ':suspects')
  end
else
  for rank, base in ipairs(line.bases) do
    promote(base, now)
    local ids = next_ids(base .. ':waiting')
    while ids do
      take(rank, base, ids)
      ids = next_ids(base .. ':waiting')
    end
  end
end
if looked >= MOST and #reply - 2 < limit then
  reply[2] = 1
end
return reply
