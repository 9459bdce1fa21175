-- with: queue life ending
-- Find jobs of dead workers, and forgotten ones. ARGV: queue, where to begin in processing, 'now' or '' (once a second).
--   in processing without a lease  it has ended, or its worker died before it began. Seen twice, a second or more apart,
--                                  it is reset; a job that the original has just moved gets its lock in between
--   moved                          the worker that was woken for it has not claimed: another one is woken
--   delayed, ready for long        to the front
--   parked                         their children looked at anew, for those that end without a word
--   not ended                      their time to live renewed (_life.lua: renew)
--   failed                         those not kept any more are removed from the set of failed ones
-- Gives {where to go on, or -1: all was seen; how many have asked in this second, 0: it was this one's turn; id, state,
-- …}.
local SECOND = 1000
local CHILDREN = 2000 -- counted in one call
local begin = tonumber(ARGV[2])
local now = now_ms()
local FIRST = 2 -- values of the reply before the resets
local reply = { -1, 0 }
if ARGV[3] ~= 'now' then
  local asked = redis.pcall('INCR', queue.root .. ':swept')
  asked = type(asked) == 'number' and asked or 1 -- where memory is full
  if asked > 1 then
    if asked % 100 == 0 and redis.call('PTTL', queue.root .. ':swept') < 0 then
      redis.call('DEL', queue.root .. ':swept') -- another client has removed its time to live
    end
    reply[2] = asked
    return reply
  end
  redis.call('PEXPIRE', queue.root .. ':swept', SECOND)
end
if not queue.ranked and not queue.parent then
  redis.pcall('SET', queue.root .. ':flow', queue.flow, 'NX') -- again, where the server has forgotten whose it is
end

local function act(base, id)
  if redis.call('LREM', base .. ':processing', 0, id) > 0 then -- however often it stood there
    redis.call('DEL', queue.locks .. id) -- one that outlives its lease: nothing that its holder writes counts any more
    local state = reset(id, base)
    if state then
      reply[#reply + 1], reply[#reply + 2] = id, state
    end
  end
end

-- The locks of those that are alive, false in the place of the others. In a lock that outlives its lease stands the
-- claim whose lease it is.
local function leases_of(ids)
  local locks = locks_of(ids)
  local names, places = {}, {}
  for place, lock in ipairs(locks) do
    local token = queue.leases and lock and string.match(lock, '%+:([^:]*)$')
    if token then
      names[#names + 1], places[#places + 1] = queue.leases .. token, place
    end
  end
  for from = 1, #names, CHUNK do
    local last = math.min(from + CHUNK - 1, #names)
    for index, found in ipairs(redis.call('MGET', unpack(names, from, last))) do
      if not found then
        locks[places[from + index - 1]] = false
      end
    end
  end
  return locks
end

local function look_at_processing(base)
  local ids = redis.call('LRANGE', base .. ':processing', begin, begin + CHUNK - 1)
  local seen = {}
  if redis.call('EXISTS', base .. ':unlocked') == 1 then
    local known = redis.call('ZRANGE', base .. ':unlocked', 0, -1, 'WITHSCORES')
    for place = 1, #known, 2 do
      seen[known[place]] = tonumber(known[place + 1])
    end
  end
  local due, marks, over = {}, {}, {}
  local locks = leases_of(ids)
  for place, id in ipairs(ids) do
    if locks[place] then
      over[#over + 1] = seen[id] and id
    elseif seen[id] and seen[id] <= now - SECOND then
      due[#due + 1], over[#over + 1] = id, id
    else
      marks[#marks + 1], marks[#marks + 2] = seen[id] or now, id
    end
  end
  -- What is locked by now, or has left, must not be remembered: its next first look would count as its second.
  if begin == 0 and #ids < CHUNK then
    redis.call('DEL', base .. ':unlocked')
  elseif #over > 0 then
    redis.call('ZREM', base .. ':unlocked', unpack(over))
  end
  if #marks > 0 then
    redis.call('ZADD', base .. ':unlocked', unpack(marks))
    redis.call('PEXPIRE', base .. ':unlocked', 600 * SECOND)
  end
  local before = #reply
  for place = #due, 1, -1 do
    act(base, due[place])
  end
  -- They went to the front from the last to the first; they are reported from the first to the last.
  local sorted = {}
  for place = #reply - 1, before + 1, -2 do
    sorted[#sorted + 1], sorted[#sorted + 2] = reply[place], reply[place + 1]
  end
  for place, value in ipairs(sorted) do
    reply[before + place] = value
  end
  if #ids == CHUNK then
    reply[1] = begin + CHUNK - #due
  end
end

local function look_at_parents(base)
  local budget = CHILDREN
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
        redis.call('LPUSH', base .. ':waiting', id) -- first: where it is refused, it stays
        redis.call('ZREM', base .. ':parked', id)
        redis.call('HDEL', hash, 'children:' .. queue.name .. ':open')
        set_state(id, 'waiting')
      end
    end
  end
end

-- One page after the other, in the order of the ids. A child may be kept longer than what failed after it.
local function forget_failed()
  local set, seen = queue.root .. ':failed', queue.root .. ':failed:seen'
  local after = redis.call('GET', seen)
  local page = redis.call('ZRANGEBYLEX', set, after and '(' .. after or '-', '+', 'LIMIT', 0, CHUNK)
  for _, id in ipairs(page) do
    if redis.call('EXISTS', queue.hashes .. id) == 0 then
      redis.call('ZREM', set, id)
    end
  end
  if #page == CHUNK then
    redis.call('SET', seen, page[#page], 'PX', 3600 * SECOND)
  elseif after then
    redis.call('DEL', seen)
  end
end

local function bring_back_moved(base)
  while redis.call('LMOVE', base .. ':moved', base .. ':waiting', 'RIGHT', 'LEFT') do
  end
end

local LATE = ARGV[3] == 'now' and 0 or SECOND -- those that are ready for less are taken by workers, or lent to them

local function bring_forward(base)
  promote(base, now - LATE)
end

-- An error of one key does not stop the others.
local trouble
local function try(look, ...)
  local sound, why = pcall(look, ...)
  trouble = sound and trouble or why
end

for _, base in ipairs(queue.bases) do
  for _, look in ipairs({ bring_back_moved, bring_forward, look_at_processing, look_at_parents }) do
    try(look, base)
  end
end
if begin == 0 then
  try(forget_failed)
  if queue.lasting then
    try(release_more, queue.root)
  else
    try(renew, queue.root, queue.bases)
  end
end
if trouble and #reply == FIRST then
  return { err = words_of(trouble) }
end
return reply
