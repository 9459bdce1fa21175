-- with: line ending
-- Find what nobody looks after. ARGV: line, where to begin in processing, 'now' or '' (then once a second, whoever asks).
--   in processing without a lock   its lease has ended, or its worker died before it set one. Seen twice, a second or
--                                  more apart, it is reset; a job that has just been moved gets its lock in between
--   delayed and ready              to the front
--   parked                         their children counted anew, for those that end without a word
-- Gives {where to go on, or -1: all was seen, id, state, …}.
local SECOND = 1000
local CHILDREN = 2000 -- counted in one call
local begin = tonumber(ARGV[2])
local now = now_ms()
local reply = { -1 }
if ARGV[3] ~= 'now' and not redis.call('SET', line.root .. ':swept', '1', 'PX', SECOND, 'NX') then
  return reply
end
if not line.ranked and not line.parent then
  redis.pcall('SET', line.root .. ':flow', line.flow, 'NX') -- again, where the server has forgotten whose it is
end

local function act(base, id)
  if redis.call('LREM', base .. ':processing', 0, id) > 0 then -- however often it stood there
    local state = reset(id, base)
    if state then
      reply[#reply + 1], reply[#reply + 2] = id, state
    end
  end
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
  local locks = locks_of(ids)
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
  -- They went to the front from the last to the first; they are told from the first to the last.
  local told = {}
  for place = #reply - 1, before + 1, -2 do
    told[#told + 1], told[#told + 2] = reply[place], reply[place + 1]
  end
  for place, value in ipairs(told) do
    reply[before + place] = value
  end
  if #ids == CHUNK then
    reply[1] = begin + CHUNK - #due
  end
end

local function look_at_parents(base)
  local budget = CHILDREN
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. ':parked', '-inf', now, 'LIMIT', 0, 100)) do
    local hash = line.hashes .. id
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
        redis.call('HDEL', hash, 'children:' .. line.queue .. ':open')
      end
    end
  end
end

-- What is wrong with one key keeps nobody from the others.
local trouble
for _, base in ipairs(line.bases) do
  for _, look in ipairs({ promote, look_at_processing, look_at_parents }) do
    local sound, why = pcall(look, base, now)
    trouble = sound and trouble or why
  end
end
if trouble and #reply == 1 then
  return { err = words_of(trouble) }
end
return reply
