-- with: queue life
-- Put a failed job, or a lost one (which no list contains), at the end of its queue with all retries.
-- KEYS: its hash. ARGV: queue; the id in lists (any bytes); and as JSON:
--   failed, failed_queue, state    values that the caller has read; the job must not have changed since
--   lost                           the job has not failed: it is put back only if no list of the queue contains it
-- Returns 'retried', or the reason why not.
local hash, id, read = KEYS[1], ARGV[2], cjson.decode(ARGV[3])
local failed, failed_queue, state, quoted_parent, priority = unpack(
  redis.call('HMGET', hash, 'failed', 'failedQueue', STATE, 'parent', 'priority')
)
for name, value in pairs({ failed = failed, failed_queue = failed_queue, state = state }) do
  if (value or cjson.null) ~= read[name] then
    return 'changed'
  end
end

local function is_in_a_list()
  for _, base in ipairs(queue.bases) do
    for _, kind in ipairs({ ':waiting', ':moved', ':processing' }) do
      if redis.call('LPOS', base .. kind, id) then
        return true
      end
    end
    if redis.call('ZSCORE', base .. ':delayed', id) or redis.call('ZSCORE', base .. ':parked', id) then
      return true
    end
  end
  return redis.call('LPOS', queue.root .. ':suspects', id)
end

if read.lost and is_in_a_list() then
  return 'changed'
end

-- Returns whether the parent still has this child: a parent that comes to the queue again creates other children.
local function is_child_of(parent)
  for _, key in ipairs(children_of(parent, queue.parent.name)) do
    if key == hash then
      return true
    end
  end
  return false
end

local parent, open
if queue.parent then
  local ok, parent_id = pcall(cjson.decode, quoted_parent or '')
  if not ok or type(parent_id) ~= 'string' then
    return 'unknown parent'
  end
  local field = 'children:' .. queue.parent.name
  parent, open = queue.parent.hashes .. parent_id, field .. ':open'
  if redis.call('EXISTS', parent) == 0 then
    return 'orphan'
  elseif redis.call('HEXISTS', parent, 'failed') == 1 then
    return 'parent failed'
  elseif redis.call('HEXISTS', parent, field .. ':results') == 1 or not is_child_of(parent) then
    return 'gathered'
  elseif redis.call('EXISTS', queue.prefix .. 'lock:' .. queue.parent.name .. ':' .. parent_id) == 1 then
    return 'gathering'
  end
end
-- The push comes first: if it is refused, nothing is changed.
redis.call('RPUSH', base_of(queue.bases, queue.ranked and priority) .. ':waiting', id)
if parent and not read.lost and redis.call('HEXISTS', parent, open) == 1 then
  redis.call('HINCRBY', parent, open, 1)
end
redis.call(
  'HDEL', hash, 'done', 'failed', 'failedQueue', 'failedErrorMsg', 'canceled', CANCEL, RETRIES, RESETS,
  'endedAtTimestamp'
)
set_state(id, 'waiting')
redis.call('ZREM', queue.root .. ':failed', id)
if queue.again then
  redis.call('HSET', hash, queue.again, 'true')
end
local holders = holders_of(hash)
if holders and not redis.call('LPOS', holders, id) then
  redis.call('RPUSH', holders, id) -- a later job with the same key has deleted the list
end

-- Keys that live as long as the job: its children; and its lookup lists if the original implementation serves the flow.
local kept = queue.lasting and {} or lists_of(hash)
for _, name in ipairs(queue.parents) do
  for _, key in ipairs(children_of(hash, name)) do
    if type(key) == 'string' and is_child(key) then
      kept[#kept + 1] = key
    end
  end
end
if not queue.lasting then
  redis.call('PEXPIRE', hash, queue.key_life)
  for _, key in ipairs(kept) do
    redis.call('PEXPIRE', key, queue.key_life)
  end
  return 'retried'
end
-- The job is live again, so the counters of its lookup lists include it.
local ended = redis.call('PTTL', hash) >= 0
redis.call('PERSIST', hash)
for _, key in ipairs(kept) do
  redis.call('PERSIST', key)
end
for _, list in ipairs(ended and texts_in(redis.call('HGET', hash, LISTS)) or {}) do
  redis.call('INCR', counter_of(list))
  redis.call('PERSIST', list)
end
return 'retried'
