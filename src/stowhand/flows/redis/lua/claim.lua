-- with: queue
-- Claim up to ``limit`` due jobs by priority: delayed jobs that are ready, in their order, then the lists in theirs.
-- Claimed jobs move to processing, and each gets a lock.
-- ARGV: queue; token; worker; limit; milliseconds of the lease; 'suspects' or ''; milliseconds of the lock if it
-- outlives the lease, else 0; 'woken' if a job has just been moved for this worker, or ''.
-- Returns {time in microseconds; 1 if there may be more jobs, 2 if the queue is paused, else 0; 0 if there is no
-- timekeeper; 0 if no suspect waits; row …}. A row contains the requested fields (or all: name, value, …), the id, and
-- the priority.
local token, limit, lease, apart = ARGV[2], tonumber(ARGV[4]), ARGV[5], ARGV[6] == 'suspects'
local life, woken = ARGV[7], ARGV[8] == 'woken'
local leased = life ~= '0'
local owner = ARGV[3] .. (leased and LEASED_SEPARATOR or ':') .. token
if not leased then
  life = lease
end
local MAX_CHECKED_IDS = 2000 -- maximum number of ids that one call checks: deleted and delayed jobs take time too
local HEADER_LENGTH = 4 -- number of values in the reply before the rows
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local reply = { time[1] .. string.format('%06d', time[2]), 0, 1, 1 }

local limiter, fields = queue.limiter, queue.fields
local positions = {} -- position of each field, by name
for place, name in ipairs(fields or {}) do
  positions[name] = positions[name] or place
end

-- Returns the row of a job for the reply, and a function that returns a field by name; nil if the job does not exist.
local function read_job(id)
  if fields then
    local row, reason = fields_of(id, unpack(fields))
    if reason then
      error(reason, 0)
    end
    return row, row and function(name) return row[positions[name]] end
  end
  local row = redis.pcall('HGETALL', queue.hashes .. id)
  if row.err and read_error_of(row) then
    error(read_error_of(row), 0)
  elseif row.err or #row == 0 then
    return nil
  end
  local values = {}
  for place = 1, #row, 2 do
    values[row[place]] = row[place + 1]
  end
  return row, function(name) return values[name] end
end

-- Returns the last window with reserved starts, and their number: each window has as many as the reservoir.
local function last_ticket(group)
  local window, given = string.match(redis.call('GET', limiter.tickets .. group) or '', '^(%d+):(%d+)$')
  return tonumber(window or 0), tonumber(given or 0)
end

-- A job that is claimed at the very end of a window would start in the next one, which has jobs of its own.
local function is_early(window)
  return (window + 1) * limiter.interval - now > math.min(20, limiter.interval / 50)
end

-- Applies the limiter. If this window is full, delays the job to a later window, in which the reservoir has room.
local function is_held_back(id, base, value)
  local group = limiter.group and group_of(value(limiter.group)) or 'default'
  local waiting = limiter.enqueued .. group
  if value('delay') and count(redis.call('GET', waiting)) > 0 then
    redis.call('DECR', waiting)
  end
  local current = math.floor(now / limiter.interval)
  local calls = limiter.calls .. group .. ':' .. string.format('%d', current)
  local window, given = last_ticket(group)
  -- A delayed job may start as soon as a window has room. A new job must wait while others are delayed.
  local has_room = is_early(current) and count(redis.call('GET', calls)) < limiter.reservoir
  if has_room and (value('delay') or window <= current or count(redis.call('GET', waiting)) == 0) then
    redis.call('INCR', calls)
    redis.call('PEXPIRE', calls, 2 * limiter.interval)
    return false
  end
  if window <= current then
    window, given = current + 1, 0
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

-- Returns whether the job has a lock and is in processing. Then it was in the queue twice, and the lock belongs to the
-- other entry. A lock without an entry in processing is a leftover: the original's workers leave it after a failure.
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

-- Claims one job. Returns its row; 'suspect' if it must run apart; nil if its hash was deleted or has expired, if it
-- was in the queue twice, or if it must wait.
local function claim_one(rank, base, id)
  local row, value = read_job(id)
  if not row then
    return nil
  elseif not apart and count(value(RESETS)) >= SUSPECT_RESETS then
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

local claimed, problem = {}, nil
local rejected = {} -- ids that could not be claimed because of an error (a key of a wrong type, a missing permission)

local function move(list, ids)
  local ok, reason = pcall(redis.call, 'RPUSH', list, unpack(ids))
  if not ok then
    problem = reason
    for _, id in ipairs(ids) do
      rejected[#rejected + 1] = id
    end
  end
  return ok
end

local function set_apart(ids)
  for _, id in ipairs(ids) do
    if not add_suspect(id) then
      rejected[#rejected + 1] = id
    end
  end
end

local function claim_ids(rank, base, ids)
  local claimed_ids, rows, suspects = {}, {}, {}
  for _, id in ipairs(ids) do
    local ok, row = true, nil
    if not claimed[id] then
      ok, row = pcall(claim_one, rank, base, id)
    end
    if not ok then
      rejected[#rejected + 1], problem = id, row
    elseif row == 'suspect' then
      suspects[#suspects + 1] = id
    elseif row then
      claimed_ids[#claimed_ids + 1], rows[#rows + 1] = id, row
      claimed[id] = true
    end
  end
  set_apart(suspects)
  if #claimed_ids == 0 then
    return
  end
  if not move(base .. ':processing', claimed_ids) then
    for _, id in ipairs(claimed_ids) do
      redis.call('DEL', queue.locks .. id)
    end
    return
  end
  for _, row in ipairs(rows) do
    reply[#reply + 1] = row
  end
end

local checked_count = 0
local function remaining()
  return math.min(limit + HEADER_LENGTH - #reply, MAX_CHECKED_IDS - checked_count, MAX_VALUES)
end

local function next_ids(list)
  local ids = remaining() > 0 and redis.call('LPOP', list, remaining())
  checked_count = checked_count + (ids and #ids or 0)
  return ids
end

local function serve_list(list, rank, base)
  local ids = next_ids(list)
  while ids do
    claim_ids(rank, base, ids)
    ids = next_ids(list)
  end
end

-- Usual case of an idle worker with one free slot: claim the job that has woken it, moved by one command.
local function serve_moved(list, rank, base)
  if remaining() ~= 1 then
    return serve_list(list, rank, base)
  end
  local processing = base .. ':processing'
  local id = redis.call('LMOVE', list, processing, 'LEFT', 'RIGHT')
  if not id then
    return
  end
  checked_count = checked_count + 1
  local ok, row = pcall(claim_one, rank, base, id)
  if ok and row and row ~= 'suspect' then
    claimed[id] = true
    reply[#reply + 1] = row
    return
  end
  redis.call('LREM', processing, -1, id)
  if not ok then
    rejected[#rejected + 1], problem = id, row
  elseif row == 'suspect' then
    set_apart({ id })
  end
  return serve_list(list, rank, base)
end

local function serve_suspects(list)
  while remaining() > 0 do
    local first = redis.call('LINDEX', list, 0)
    if not first then
      return
    end
    redis.call('LPOP', list)
    checked_count = checked_count + 1
    local priority = queue.ranked and redis.pcall('HGET', queue.hashes .. first, 'priority')
    claim_ids(1, base_of(queue.bases, type(priority) == 'string' and priority or 1), { first })
  end
end

-- Claims delayed jobs that are ready, in the order of their times. A job that the timekeeper has moved for an idle
-- worker (due.lua) comes first if it is still there.
local function serve_delayed(list, rank, base)
  while remaining() > 0 do
    local first = redis.call('ZRANGE', list, 0, 0, 'WITHSCORES')
    if not first[2] or tonumber(first[2]) > now then
      return
    end
    local promoted = redis.call('GET', base .. ':lent')
    if promoted and redis.call('LINDEX', base .. ':waiting', 0) == promoted then
      claim_ids(rank, base, { redis.call('LPOP', base .. ':waiting') })
    end
    if remaining() > 0 then
      local ids = redis.call('ZRANGEBYSCORE', list, '-inf', now, 'LIMIT', 0, remaining())
      checked_count = checked_count + #ids
      redis.call('ZREM', list, unpack(ids))
      claim_ids(rank, base, ids)
    end
  end
end

-- Calls a function for a list. An error of one list or job does not affect the others.
local function serve(how, list, home, ...)
  local ok, reason = pcall(how, list, ...)
  problem = ok and problem or reason
  for place = #rejected, 1, -1 do
    redis.call('LPUSH', home, rejected[place])
  end
  rejected = {}
end

local function serve_all()
  if apart then
    local list = queue.root .. ':suspects'
    serve(serve_suspects, list, list)
    return
  end
  for rank, base in ipairs(queue.bases) do
    local waiting = base .. ':waiting'
    serve(serve_moved, base .. ':moved', waiting, rank, base) -- an idle worker was woken for these jobs
    serve(serve_delayed, base .. ':delayed', waiting, rank, base)
    serve(serve_list, waiting, waiting, rank, base)
  end
end

-- Returns whether all lists are empty: the usual case of an idle worker, or one that has finished all jobs.
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

local lease_refused = false

-- Returns whether the token was abandoned. If locks outlive their lease, also starts the claim's own lease.
local function is_dead()
  if not leased then
    return redis.call('EXISTS', queue.dead .. token) == 1
  end
  local lease_reply = redis.pcall('SET', queue.leases .. token, 'alive', 'PX', lease, 'NX')
  -- If the server's memory is full, only finished jobs make room. So the lease may start after a job was claimed.
  lease_refused = lease_reply and lease_reply.err
  return (not lease_reply or lease_refused) and redis.call('GET', queue.leases .. token) == 'dead'
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
if lease_refused and #reply > HEADER_LENGTH then
  redis.call('SET', queue.leases .. token, 'alive', 'PX', lease)
end
if not apart and #reply == HEADER_LENGTH then
  reply[3] = redis.call('EXISTS', queue.root .. ':timer')
  reply[4] = redis.call('EXISTS', queue.root .. ':suspects')
end
if problem and #reply == HEADER_LENGTH then
  return { err = error_text(problem) }
end
if checked_count >= MAX_CHECKED_IDS and #reply - HEADER_LENGTH < limit then
  reply[2] = 1
end
return reply
