-- with: queue
-- Take up to ``limit`` due jobs: what was delayed and is ready, in its order, then as they stand in the lists, one
-- priority after the other; into processing, each under its lock.
-- ARGV: queue, token, worker, limit, milliseconds of the lease, 'suspects' or '', milliseconds of the lock where that is
-- longer than the lease, else 0, 'woken' where a job has just been moved for who asks, or ''.
-- Gives {microseconds now, 1 where there may be more to take, 2 where the queue is paused, 0 where there is no timekeeper, 0 where no suspect waits,
-- row …}; a row is the wanted fields (or all: name, value, …), then the id and the place of its priority.
local token, limit, lease, apart = ARGV[2], tonumber(ARGV[4]), ARGV[5], ARGV[6] == 'suspects'
local life, woken = ARGV[7], ARGV[8] == 'woken'
local leased = life ~= '0'
local owner = ARGV[3] .. (leased and LEASED or ':') .. token
if not leased then
  life = lease
end
local MOST = 2000 -- ids looked at in one call: ghosts and delayed jobs take time too
local BEFORE = 4 -- values of the reply before the rows
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply = { time[1] .. string.format('%06d', time[2]), 0, 1, 1 }

local limiter, fields = queue.limiter, queue.fields
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
  local row = redis.pcall('HGETALL', queue.hashes .. id)
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

-- The last window for which tickets were given, and how many: each has as many as the reservoir.
local function last_ticket(group)
  local window, given = string.match(redis.call('GET', limiter.tickets .. group) or '', '^(%d+):(%d+)$')
  return tonumber(window or 0), tonumber(given or 0)
end

-- What is taken at the very end of a window would start in the next one, which has its own.
local function is_early(window)
  return (window + 1) * limiter.interval - now > math.min(20, limiter.interval / 50)
end

-- Too many in this window? Then it waits for one of the next: so many in each as the reservoir allows.
local function is_held_back(id, base, value)
  local group = limiter.group and group_of(value(limiter.group)) or 'default'
  local waiting = limiter.enqueued .. group
  if value('delay') and count(redis.call('GET', waiting)) > 0 then
    redis.call('DECR', waiting)
  end
  local here = math.floor(now / limiter.interval)
  local calls = limiter.calls .. group .. ':' .. string.format('%d', here)
  local window, given = last_ticket(group)
  -- A job that has waited, overdue or not, passes as soon as a window has room; a new one not while others wait.
  local has_room = is_early(here) and count(redis.call('GET', calls)) < limiter.reservoir
  if has_room and (value('delay') or window <= here or count(redis.call('GET', waiting)) == 0) then
    redis.call('INCR', calls)
    redis.call('PEXPIRE', calls, 2 * limiter.interval)
    return false
  end
  if window <= here then
    window, given = here + 1, 0
  elseif given >= limiter.reservoir then
    window, given = window + 1, 0
  end
  local ready = window * limiter.interval
  local left = string.format('%d', ready - now + 2 * limiter.interval)
  redis.call('SET', limiter.tickets .. group, string.format('%d:%d', window, given + 1), 'PX', left)
  redis.call('INCR', waiting)
  redis.call('PEXPIRE', waiting, left)
  delay_until(ready, base, id, now)
  redis.call(
    'HSET', queue.hashes .. id, 'delay', 'true', 'delayReason', limiter.reason, 'delayReadyTimestamp', string.format('%d', ready)
  )
  return true
end

-- Under a lock, and at work? Then it stood in the queue twice, and one lock is for one of them. A lock alone is a
-- leftover: the original's workers leave it after a failure.
local function is_at_work(id)
  if redis.call('EXISTS', queue.locks .. id) == 1 then
    for _, base in ipairs(queue.bases) do
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
  local lock = queue.locks .. id
  if not redis.call('SET', lock, owner, 'PX', life, 'NX') then
    if is_at_work(id) then
      return nil
    end
    redis.call('SET', lock, owner, 'PX', life)
  end
  set_state(id, 'processing')
  if value('delay') then
    redis.call('HDEL', queue.hashes .. id, 'delay', 'delayReason', 'delayReadyTimestamp')
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

local function set_apart(ids)
  for _, id in ipairs(ids) do
    if not suspect(id) then
      back[#back + 1] = id
    end
  end
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
  set_apart(suspects)
  if #taken == 0 then
    return
  end
  if not move(base .. ':processing', taken) then
    for _, id in ipairs(taken) do
      redis.call('DEL', queue.locks .. id)
    end
    return
  end
  for _, row in ipairs(rows) do
    reply[#reply + 1] = row
  end
end

local looked = 0
local function room()
  return math.min(limit + BEFORE - #reply, MOST - looked, CHUNK)
end

local function next_ids(list)
  local ids = room() > 0 and redis.call('LPOP', list, room())
  looked = looked + (ids and #ids or 0)
  return ids
end

local function serve_list(list, rank, base)
  local ids = next_ids(list)
  while ids do
    take(rank, base, ids)
    ids = next_ids(list)
  end
end

-- The usual case of an idle worker with one slot: what has woken it, moved in one command.
local function serve_moved(list, rank, base)
  if room() ~= 1 then
    return serve_list(list, rank, base)
  end
  local processing = base .. ':processing'
  local id = redis.call('LMOVE', list, processing, 'LEFT', 'RIGHT')
  if not id then
    return
  end
  looked = looked + 1
  local sound, row = pcall(take_one, rank, base, id)
  if sound and row and row ~= 'suspect' then
    mine[id] = true
    reply[#reply + 1] = row
    return
  end
  redis.call('LREM', processing, -1, id)
  if not sound then
    back[#back + 1], trouble = id, row
  elseif row == 'suspect' then
    set_apart({ id })
  end
  return serve_list(list, rank, base)
end

local function serve_suspects(list)
  while room() > 0 do
    local first = redis.call('LINDEX', list, 0)
    if not first then
      return
    end
    redis.call('LPOP', list)
    looked = looked + 1
    local priority = queue.ranked and redis.pcall('HGET', queue.hashes .. first, 'priority')
    take(1, base_of(queue.bases, type(priority) == 'string' and priority or 1), { first })
  end
end

-- What is ready, the first that was to be ready first: before the others, one that was moved for an idle worker, if it
-- is still there (due.lua).
local function serve_delayed(list, rank, base)
  while room() > 0 do
    local first = redis.call('ZRANGE', list, 0, 0, 'WITHSCORES')
    if not first[2] or tonumber(first[2]) > now then
      return
    end
    local lent = redis.call('GET', base .. ':lent')
    if lent and redis.call('LINDEX', base .. ':waiting', 0) == lent then
      take(rank, base, { redis.call('LPOP', base .. ':waiting') })
    end
    if room() > 0 then
      local ids = redis.call('ZRANGEBYSCORE', list, '-inf', now, 'LIMIT', 0, room())
      looked = looked + #ids
      redis.call('ZREM', list, unpack(ids))
      take(rank, base, ids)
    end
  end
end

-- An error of one list, or of one job, does not stop the others.
local function serve(how, list, home, ...)
  local sound, why = pcall(how, list, ...)
  trouble = sound and trouble or why
  for place = #back, 1, -1 do
    redis.call('LPUSH', home, back[place])
  end
  back = {}
end

local function serve_all()
  if apart then
    local list = queue.root .. ':suspects'
    serve(serve_suspects, list, list)
    return
  end
  for rank, base in ipairs(queue.bases) do
    local waiting = base .. ':waiting'
    serve(serve_moved, base .. ':moved', waiting, rank, base) -- an idle worker was woken for it
    serve(serve_delayed, base .. ':delayed', waiting, rank, base)
    serve(serve_list, waiting, waiting, rank, base)
  end
end

-- Nothing anywhere: the usual case of an idle worker that looks, or has worked off what there was.
local function is_empty()
  if woken or apart then
    return false
  end
  local names = { queue.root .. ':suspects' }
  for _, base in ipairs(queue.bases) do
    for _, kind in ipairs({ ':moved', ':delayed', ':waiting' }) do
      names[#names + 1] = base .. kind
    end
  end
  return redis.call('EXISTS', unpack(names)) == 0
end

local unleased = false

-- A token that was abandoned claims nothing more. Where locks outlive their lease the claim's own lease begins.
local function is_dead()
  if not leased then
    return redis.call('EXISTS', queue.dead .. token) == 1
  end
  local begun = redis.pcall('SET', queue.leases .. token, 'alive', 'PX', lease, 'NX')
  -- Where memory is full, workers make room by working: a lease may begin once a job was taken.
  unleased = begun and begun.err
  return (not begun or unleased) and redis.call('GET', queue.leases .. token) == 'dead'
end

if redis.call('EXISTS', queue.root .. ':paused') == 1 then
  reply[2], reply[4] = 2, 0
  return reply
elseif is_empty() then
  reply[3], reply[4] = redis.call('EXISTS', queue.root .. ':timer'), 0
  return reply
elseif is_dead() then
  return reply
end
serve_all()
if unleased and #reply > BEFORE then
  redis.call('SET', queue.leases .. token, 'alive', 'PX', lease)
end
if not apart and #reply == BEFORE then
  reply[3] = redis.call('EXISTS', queue.root .. ':timer')
  reply[4] = redis.call('EXISTS', queue.root .. ':suspects')
end
if trouble and #reply == BEFORE then
  return { err = words_of(trouble) }
end
if looked >= MOST and #reply - BEFORE < limit then
  reply[2] = 1
end
return reply
