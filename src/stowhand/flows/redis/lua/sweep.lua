-- with: queue life ending
-- Sweep a queue for jobs of lost workers. ARGV: queue; start position in processing; 'now', or '' for at most once a
-- second.
--   in processing without a lease  the lease has expired, or the worker died before it began. A job that two sweeps, at
--                                  least a second apart, have seen so is reset: the original locks a job after moving it
--   moved                          the worker that was woken for the job has not claimed it: wake another one
--   delayed, overdue               move to the front
--   parked                         count the children again, since some end without waking their parent
--   not ended                      renew their time to live (``renew`` in _life.lua)
--   failed                         remove expired jobs from the set of failed ones
-- Returns {position at which to continue, or -1 at the end; number of earlier requests in this second, or 0 if this
-- call has swept; id, state, …}.
local SECOND_MS = 1000
local MAX_CHILDREN = 2000 -- maximum number of children that one call counts
local start = tonumber(ARGV[2])
local now = now_ms()
local HEADER_LENGTH = 2 -- number of values in the reply before the resets
local reply = { -1, 0 }
if ARGV[3] ~= 'now' then
  local request_count = redis.pcall('INCR', queue.root .. ':swept')
  request_count = type(request_count) == 'number' and request_count or 1 -- refused if the server's memory is full
  if request_count > 1 then
    if request_count % 100 == 0 and redis.call('PTTL', queue.root .. ':swept') < 0 then
      redis.call('DEL', queue.root .. ':swept') -- another client has removed its time to live
    end
    reply[2] = request_count
    return reply
  end
  redis.call('PEXPIRE', queue.root .. ':swept', SECOND_MS)
end
if not queue.ranked and not queue.parent then
  redis.pcall('SET', queue.root .. ':flow', queue.flow, 'NX') -- mark the owner again if the server has lost the key
end

local function reset_and_report(base, id)
  if redis.call('LREM', base .. ':processing', 0, id) > 0 then -- all of its entries
    redis.call('DEL', queue.locks .. id) -- without its lock, the former holder can settle nothing
    local state = reset(id, base)
    if state then
      reply[#reply + 1], reply[#reply + 2] = id, state
    end
  end
end

-- Returns the locks of jobs with a live lease, and false for others. A lock that outlives its lease contains the claim
-- token, and the lease of the claim has a key of its own.
local function leases_of(ids)
  local locks = locks_of(ids)
  local names, places = {}, {}
  for place, lock in ipairs(locks) do
    local token = queue.leases and lock and string.match(lock, '%+:([^:]*)$')
    if token then
      names[#names + 1], places[#places + 1] = queue.leases .. token, place
    end
  end
  for from = 1, #names, MAX_VALUES do
    local last = math.min(from + MAX_VALUES - 1, #names)
    for index, found in ipairs(redis.call('MGET', unpack(names, from, last))) do
      if not found then
        locks[places[from + index - 1]] = false
      end
    end
  end
  return locks
end

local function check_processing(base)
  local ids = redis.call('LRANGE', base .. ':processing', start, start + MAX_VALUES - 1)
  local seen = {}
  if redis.call('EXISTS', base .. ':unlocked') == 1 then
    local known = redis.call('ZRANGE', base .. ':unlocked', 0, -1, 'WITHSCORES')
    for place = 1, #known, 2 do
      seen[known[place]] = tonumber(known[place + 1])
    end
  end
  local due, new_marks, leased_again = {}, {}, {}
  local locks = leases_of(ids)
  for place, id in ipairs(ids) do
    if locks[place] then
      leased_again[#leased_again + 1] = seen[id] and id
    elseif seen[id] and seen[id] <= now - SECOND_MS then
      due[#due + 1], leased_again[#leased_again + 1] = id, id
    else
      new_marks[#new_marks + 1], new_marks[#new_marks + 2] = seen[id] or now, id
    end
  end
  -- Forget jobs that have a lease now or have left: otherwise a later first sighting would count as the second.
  if start == 0 and #ids < MAX_VALUES then
    redis.call('DEL', base .. ':unlocked')
  elseif #leased_again > 0 then
    redis.call('ZREM', base .. ':unlocked', unpack(leased_again))
  end
  if #new_marks > 0 then
    redis.call('ZADD', base .. ':unlocked', unpack(new_marks))
    redis.call('PEXPIRE', base .. ':unlocked', 600 * SECOND_MS)
  end
  local before = #reply
  for place = #due, 1, -1 do
    reset_and_report(base, due[place])
  end
  -- The jobs were moved to the front in reverse order. Report them in their own order.
  local sorted = {}
  for place = #reply - 1, before + 1, -2 do
    sorted[#sorted + 1], sorted[#sorted + 2] = reply[place], reply[place + 1]
  end
  for place, value in ipairs(sorted) do
    reply[before + place] = value
  end
  if #ids == MAX_VALUES then
    reply[1] = start + MAX_VALUES - #due
  end
end

local function check_parents(base)
  local budget = MAX_CHILDREN
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. ':parked', '-inf', now, 'LIMIT', 0, 100)) do
    local hash = queue.hashes .. id
    if redis.call('TYPE', hash).ok ~= 'hash' then
      redis.call('ZREM', base .. ':parked', id)
    elseif budget > 0 then
      local open, children = open_children(hash)
      budget = budget - children
      if open > 0 then
        park(id, base, open, now)
      else
        redis.call('LPUSH', base .. ':waiting', id) -- before ZREM: if the push is refused, the parent stays parked
        redis.call('ZREM', base .. ':parked', id)
        redis.call('HDEL', hash, 'children:' .. queue.name .. ':open')
        set_state(id, 'waiting')
      end
    end
  end
end

-- Removes expired jobs from the set of failed ones, page by page in the order of ids: a child may be kept longer than
-- jobs that failed after it.
local function remove_expired_failed()
  local set, seen = queue.root .. ':failed', queue.root .. ':failed:seen'
  local after = redis.call('GET', seen)
  local page = redis.call('ZRANGEBYLEX', set, after and '(' .. after or '-', '+', 'LIMIT', 0, MAX_VALUES)
  for _, id in ipairs(page) do
    if redis.call('EXISTS', queue.hashes .. id) == 0 then
      redis.call('ZREM', set, id)
    end
  end
  if #page == MAX_VALUES then
    redis.call('SET', seen, page[#page], 'PX', 3600 * SECOND_MS)
  elseif after then
    redis.call('DEL', seen)
  end
end

local function return_moved(base)
  while redis.call('LMOVE', base .. ':moved', base .. ':waiting', 'RIGHT', 'LEFT') do
  end
end

local OVERDUE_MS = ARGV[3] == 'now' and 0 or SECOND_MS -- workers or the timekeeper handle jobs that are ready for less time

local function promote_overdue(base)
  promote(base, now - OVERDUE_MS)
end

-- An error of one key does not affect the others.
local problem
local function try(check, ...)
  local ok, reason = pcall(check, ...)
  problem = ok and problem or reason
end

for _, base in ipairs(queue.bases) do
  for _, check in ipairs({ return_moved, promote_overdue, check_processing, check_parents }) do
    try(check, base)
  end
end
if start == 0 then
  try(remove_expired_failed)
  if queue.lasting then
    try(release_more, queue.root)
  else
    try(renew, queue.root, queue.bases)
  end
end
if problem and #reply == HEADER_LENGTH then
  return { err = error_text(problem) }
end
return reply
