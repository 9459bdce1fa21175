-- Ends of jobs, and their effect on parents.

-- Counts an ended child for its parent. The last child returns the parent to the front of its queue.
local function wake_parent(hash, quoted)
  local ok, id = pcall(cjson.decode, quoted or '')
  if not queue.parent or not ok or type(id) ~= 'string' then
    return
  end
  local key, field = queue.parent.hashes .. id, 'children:' .. queue.parent.name .. ':open'
  local open = redis.pcall('HGET', key, field)
  if queue.lasting and redis.call('PTTL', key) ~= -1 then
    redis.call('PEXPIRE', hash, queue.key_life) -- the parent was deleted, or has ended without this child
  end
  if type(open) ~= 'string' or count(open) == 0 then
    return -- the parent does not wait: it was deleted or is counting its children; otherwise the sweep counts them
  end
  if redis.call('HINCRBY', key, field, -1) > 0 then
    return
  end
  redis.call('HDEL', key, field)
  for _, base in ipairs(queue.parent.bases) do
    if redis.call('ZSCORE', base .. ':parked', id) then
      if type(redis.pcall('LPUSH', base .. ':waiting', id)) == 'number' then
        redis.call('ZREM', base .. ':parked', id) -- if the push was refused, the sweep retries it
        redis.call('HSET', key, STATE, cjson.encode('waiting:' .. queue.parent.name))
      end
      return
    end
  end
end

-- ``message`` is JSON text; ``parent``, ``lists`` and ``queues`` are fields of the job's hash; ``state``: failed or
-- canceled.
local function fail(id, message, parent, lists, queues, state)
  local hash = queue.hashes .. id
  state = state or 'failed'
  redis.call(
    'HSET', hash, 'done', 'true', 'failed', 'true', 'failedQueue', cjson.encode(queue.name), 'failedErrorMsg', message,
    STATE, state_of(state)
  )
  if state == 'failed' then
    redis.call('ZADD', queue.root .. ':failed', 0, id) -- with equal scores, the set is sorted by id
  end
  redis.call('HDEL', hash, RESETS, CANCEL)
  if queue.parent then
    wake_parent(hash, parent)
  else
    record_end(hash, lists, queues)
  end
end

-- For a waiting parent, a canceled child counts as failed.
local function cancel(id, message, parent, lists, queues)
  redis.call('HSET', queue.hashes .. id, 'canceled', 'true')
  fail(id, message, parent, lists, queues, 'canceled')
end

local CANCELED_MESSAGE = '"canceled while running"'

-- Returns a job to the front of its queue, since it was there before the others. ``order``: the time of its claim, if
-- known. A job with a cancellation request is canceled instead. Returns the new state. If the list cannot be written
-- (the key has another type), it returns nil, and the job stays in processing, where the sweep finds it.
local function return_job(id, base, resets, order)
  local row = redis.pcall('HMGET', queue.hashes .. id, CANCEL, 'parent', LISTS, QUEUES)
  if row[1] then
    cancel(id, CANCELED_MESSAGE, row[2], row[3], row[4])
    return 'canceled'
  end
  local ok
  if resets >= SUSPECT_RESETS then
    ok = add_suspect(id)
  elseif order then
    ok = pcall(to_front, id, base, order)
  else
    ok = type(redis.pcall('LPUSH', base .. ':waiting', id)) == 'number'
  end
  if ok then
    set_state(id, 'waiting')
    return 'queued'
  end
  redis.call('RPUSH', base .. ':processing', id)
end

-- Resets a job of a lost worker, which is no longer in processing and has no lock. Returns its state. It returns nil if
-- the hash does not exist, if the job cannot be read and stays in processing, or if it has failed already (the
-- original's workers record a failure before they remove the job from processing).
local function reset(id, base)
  local row, read_error = fields_of(id, RESETS, 'parent', 'failed', 'failedQueue', LISTS, QUEUES)
  if read_error then
    redis.call('RPUSH', base .. ':processing', id)
  end
  if not row or row[3] == 'true' and row[4] == cjson.encode(queue.name) then
    return nil
  end
  local resets = count(row[1])
  if resets < queue.allowed_resets then
    local state = return_job(id, base, resets + 1)
    if state == 'queued' then
      redis.call('HSET', queue.hashes .. id, RESETS, resets + 1)
    end
    return state
  end
  fail(id, cjson.encode(queue.name .. ' lock time exceeded'), row[2], row[5], row[6])
  return 'failed'
end

-- Returns the number of children that have not ended, and the number of all children. A child without a hash has ended.
local function open_children(hash)
  local listed = redis.call('HGET', hash, 'children:' .. queue.name .. ':jobs')
  local ok, keys = pcall(cjson.decode, listed or '')
  if not ok or type(keys) ~= 'table' then
    return 0, 0
  end
  local open = 0
  for _, key in ipairs(keys) do
    local done = redis.pcall('HGET', key, 'done')
    -- Early versions of the original implementation wrote the value with quotes.
    if not done and redis.call('EXISTS', key) == 1 or type(done) == 'string' and done ~= 'true' and done ~= '"true"' then
      open = open + 1
    end
  end
  return open, #keys
end

local CHILDREN_CHECK_DELAY = 10000 -- milliseconds until the sweep counts a parent's children

-- Parks a parent until its children have ended.
local function park(id, base, open, now)
  redis.call('HSET', queue.hashes .. id, 'children:' .. queue.name .. ':open', open, STATE, state_of('parked'))
  redis.call('ZADD', base .. ':parked', now + CHILDREN_CHECK_DELAY, id)
end
