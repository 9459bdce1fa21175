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
    local row, why = fields_of(id, unpack(fields))
    if why then
      error(why, 0)
    end
    return row, row and function(name) return row[known[name]] end
  end
  local row = redis.pcall('HGETALL', line.hashes .. id)
  if row.err and hidden(row) then
    error(hidden(row), 0)
  elseif row.err or #row == 0 then
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
  local before = math.max(redis.call('INCR', waiting) - 1, 0) -- the original counts below nothing
  local ready = (window + 1 + math.floor(before / limiter.reservoir)) * limiter.interval
  redis.call('PEXPIRE', waiting, ready - now + 2 * limiter.interval)
  delay_until(ready, base, id, now)
  redis.call(
    'HSET', line.hashes .. id, 'delay', 'true', 'delayReason', limiter.reason, 'delayReadyTimestamp', string.format('%d', ready)
  )
  return true
end

-- Under a lock, and at work? Then it stood in the queue twice, and one lock is for one of them. A lock alone is a
-- leftover: the original's workers leave it after a failure.
local function is_at_work(id)
  if redis.call('EXISTS', line.locks .. id) == 1 then
    for _, base in ipairs(line.bases) do
      if redis.call('LPOS', base .. ':processing', id) then
        return true
      end
    end
  end
  return false
end

-- Gives the row if it is taken; 'suspect' where it is to run apart; nil where it is a ghost (its hash was deleted, or
-- has expired), stood there twice, or has to wait.
local function take_one(rank, base, id)
  local row, value = look(id)
  if not row then
    return nil
  elseif not apart and count(value(RESETS)) >= SUSPECT then
    return 'suspect'
  elseif limiter and (is_at_work(id) or is_held_back(id, base, value)) then
    return nil
  end
  local lock = line.locks .. id
  if not redis.call('SET', lock, owner, 'PX', life, 'NX') then
    if is_at_work(id) then
      return nil
    end
    redis.call('SET', lock, owner, 'PX', life)
  end
  if value('delay') then
    redis.call('HDEL', line.hashes .. id, 'delay', 'delayReason', 'delayReadyTimestamp')
  end
  row[#row + 1], row[#row + 2] = id, rank
  return row
end

local mine, trouble = {}, nil
local back = {} -- what could not be taken, for no reason of its own (a key of a wrong type, a missing permission)

local function move(list, ids)
  local sound, why = pcall(redis.call, 'RPUSH', list, unpack(ids))
  if not sound then
    trouble = why
    for _, id in ipairs(ids) do
      back[#back + 1] = id
    end
  end
  return sound
end

local function take(rank, base, ids)
  local taken, rows, suspects = {}, {}, {}
  for _, id in ipairs(ids) do
    local sound, row = true, nil
    if not mine[id] then
      sound, row = pcall(take_one, rank, base, id)
    end
    if not sound then
      back[#back + 1], trouble = id, row
    elseif row == 'suspect' then
      suspects[#suspects + 1] = id
    elseif row then
      taken[#taken + 1], rows[#rows + 1] = id, row
      mine[id] = true
    end
  end
  if #suspects > 0 then
    move(line.root .. ':suspects', suspects)
  end
  if #taken == 0 then
    return
  end
  if not move(base .. ':processing', taken) then
    for _, id in ipairs(taken) do
      redis.call('DEL', line.locks .. id)
    end
    return
  end
  for _, row in ipairs(rows) do
    reply[#reply + 1] = row
  end
end

local looked = 0
local function next_ids(list)
  local room = math.min(limit + 2 - #reply, MOST - looked, CHUNK)
  local ids = room > 0 and redis.call('LPOP', list, room)
  looked = looked + (ids and #ids or 0)
  return ids
end

local function serve_suspects(list)
  local ids = next_ids(list)
  while ids do
    for _, id in ipairs(ids) do
      local priority = line.ranked and redis.pcall('HGET', line.hashes .. id, 'priority')
      local base = base_of(line.bases, type(priority) == 'string' and priority or 1)
      take(1, base, { id })
    end
    ids = next_ids(list)
  end
end

local function serve_rank(list, rank, base)
  local sound, why = pcall(promote, base, now) -- what waits is served all the same
  trouble = sound and trouble or why
  local ids = next_ids(list)
  while ids do
    take(rank, base, ids)
    ids = next_ids(list)
  end
end

-- What is wrong with one list, or one job, keeps nobody from the others.
local function serve(how, list, ...)
  local sound, why = pcall(how, list, ...)
  trouble = sound and trouble or why
  for place = #back, 1, -1 do
    redis.call('LPUSH', list, back[place])
  end
  back = {}
end

if apart then
  serve(serve_suspects, line.root .. ':suspects')
else
  for rank, base in ipairs(line.bases) do
    serve(serve_rank, base .. ':waiting', rank, base)
  end
end
if trouble and #reply == 2 then
  return { err = words_of(trouble) }
end
if looked >= MOST and #reply - 2 < limit then
  reply[2] = 1
end
return reply
