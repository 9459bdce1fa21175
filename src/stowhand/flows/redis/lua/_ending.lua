-- How jobs end, and what that means to a parent.

-- A child has ended: it is one less to wait for. The last one brings its parent back to the front of its queue.
local function tell_parent(hash, quoted)
  local sound, id = pcall(cjson.decode, quoted or '')
  if not queue.parent or not sound or type(id) ~= 'string' then
    return
  end
  local key, field = queue.parent.hashes .. id, 'children:' .. queue.parent.name .. ':open'
  local open = redis.pcall('HGET', key, field)
  if queue.lasting and redis.call('PTTL', key) ~= -1 then
    redis.call('PEXPIRE', hash, queue.key_life) -- the parent is gone, or has ended without it
  end
  if type(open) ~= 'string' or count(open) == 0 then
    return -- it does not wait: gone, or about to count for itself; or the sweep will count for it
  end
  if redis.call('HINCRBY', key, field, -1) > 0 then
    return
  end
  redis.call('HDEL', key, field)
  for _, base in ipairs(queue.parent.bases) do
    if redis.call('ZSCORE', base .. ':parked', id) then
      if type(redis.pcall('LPUSH', base .. ':waiting', id)) == 'number' then
        redis.call('ZREM', base .. ':parked', id) -- else the sweep tries it again
        redis.call('HSET', key, STATE, cjson.encode('waiting:' .. queue.parent.name))
      end
      return
    end
  end
end

-- ``message`` is JSON text; ``parent``, ``lists`` and ``queues`` are fields of its hash; ``state``: failed or canceled.
local function fail(id, message, parent, lists, queues, state)
  local hash = queue.hashes .. id
  state = state or 'failed'
  redis.call(
    'HSET', hash, 'done', 'true', 'failed', 'true', 'failedQueue', cjson.encode(queue.name), 'failedErrorMsg', message,
    STATE, state_of(state)
  )
  if state == 'failed' then
    redis.call('ZADD', queue.root .. ':failed', 0, id) -- one score: they are listed in the order of their ids
  end
  redis.call('HDEL', hash, RESETS, CANCEL)
  if queue.parent then
    tell_parent(hash, parent)
  else
    ended(hash, lists, queues)
  end
end

-- A parent that waits for it goes on as with a failed child.
local function cancel(id, message, parent, lists, queues)
  redis.call('HSET', queue.hashes .. id, 'canceled', 'true')
  fail(id, message, parent, lists, queues, 'canceled')
end

local CANCELED = '"canceled while running"'

-- To the front: it was there before the others. ``order``: when it was claimed, where that is known. Canceled, if that
-- was asked for. Gives its state; nil where that list takes nothing (it is something else): then it stays in
-- processing, where the sweep finds it.
local function give_back(id, base, resets, order)
  local row = redis.pcall('HMGET', queue.hashes .. id, CANCEL, 'parent', LISTS, QUEUES)
  if row[1] then
    cancel(id, CANCELED, row[2], row[3], row[4])
    return 'canceled'
  end
  local sound
  if resets >= SUSPECT then
    sound = suspect(id)
  elseif order then
    sound = pcall(to_front, id, base, order)
  else
    sound = type(redis.pcall('LPUSH', base .. ':waiting', id)) == 'number'
  end
  if sound then
    set_state(id, 'waiting')
    return 'queued'
  end
  redis.call('RPUSH', base .. ':processing', id)
end

-- Its worker died. It is out of processing, and its lock is gone. Gives what it became; nil: its hash is gone, it had
-- failed already (the original's workers say so first, and take it out of processing after that), or it has to stay.
local function reset(id, base)
  local row, hidden = fields_of(id, RESETS, 'parent', 'failed', 'failedQueue', LISTS, QUEUES)
  if hidden then
    redis.call('RPUSH', base .. ':processing', id)
  end
  if not row or row[3] == 'true' and row[4] == cjson.encode(queue.name) then
    return nil
  end
  local resets = count(row[1])
  if resets < queue.allowed_resets then
    local state = give_back(id, base, resets + 1)
    if state == 'queued' then
      redis.call('HSET', queue.hashes .. id, RESETS, resets + 1)
    end
    return state
  end
  fail(id, cjson.encode(queue.name .. ' lock time exceeded'), row[2], row[5], row[6])
  return 'failed'
end

-- How many children have not ended. One whose hash is gone has.
local function open_children(hash)
  local listed = redis.call('HGET', hash, 'children:' .. queue.name .. ':jobs')
  local sound, keys = pcall(cjson.decode, listed or '')
  if not sound or type(keys) ~= 'table' then
    return 0, 0
  end
  local open = 0
  for _, key in ipairs(keys) do
    local done = redis.pcall('HGET', key, 'done')
    -- Early versions of the original wrote it in quotes.
    if not done and redis.call('EXISTS', key) == 1 or type(done) == 'string' and done ~= 'true' and done ~= '"true"' then
      open = open + 1
    end
  end
  return open, #keys
end

local LOOK_AGAIN = 10000 -- milliseconds until the sweep counts a parent's children

-- Until its children have ended.
local function park(id, base, open, now)
  redis.call('HSET', queue.hashes .. id, 'children:' .. queue.name .. ':open', open, STATE, state_of('parked'))
  redis.call('ZADD', base .. ':parked', now + LOOK_AGAIN, id)
end
