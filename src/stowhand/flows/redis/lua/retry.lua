-- Put a failed job, or one that no list has (lost), back into its queue, as if it had just come there.
-- KEYS: its hash. ARGV: the job as JSON, and its id as it stands in lists (any bytes):
--   failed, failed_queue, state    as they were read; it must not have changed since
--   lost                       it has not failed: it is put back only if no list of the queue has it
--   queue, waiting             the queue's name, and the list to be put into
--   root, bases                where the queue's lists are
--   again                      of a parent whose children must succeed: it makes those that failed anew
--   life                       milliseconds that it is kept from now on; 0: until it has ended
--   kept                       keys that live as long: its lookups, its children
--   prefix                     what every key begins with
--   holders                    of a job with a key: the list of the jobs that have it
--   parent                     of a child: hash, lock, and the fields jobs, open and results
-- Gives 'retried', or why not.
local job = cjson.decode(ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'failed', 'failedQueue', 'flow:state')
local read = { job.failed, job.failed_queue, job.state }
for place = 1, 3 do
  if (row[place] or cjson.null) ~= read[place] then
    return 'changed'
  end
end
local parent, waits = job.parent, false

local function is_in_a_list()
  for _, base in ipairs(job.bases) do
    for _, kind in ipairs({ ':waiting', ':moved', ':processing' }) do
      if redis.call('LPOS', base .. kind, ARGV[2]) then
        return true
      end
    end
    if redis.call('ZSCORE', base .. ':delayed', ARGV[2]) or redis.call('ZSCORE', base .. ':parked', ARGV[2]) then
      return true
    end
  end
  return redis.call('LPOS', job.root .. ':suspects', ARGV[2])
end

if job.lost and is_in_a_list() then
  return 'changed'
end

-- A parent that has come again has other children.
local function is_its_child()
  local sound, keys = pcall(cjson.decode, redis.call('HGET', parent.hash, parent.jobs) or '')
  for _, key in ipairs(sound and type(keys) == 'table' and keys or {}) do
    if key == KEYS[1] then
      return true
    end
  end
  return false
end

if parent then
  if redis.call('EXISTS', parent.hash) == 0 then
    return 'orphan'
  elseif redis.call('HEXISTS', parent.hash, 'failed') == 1 then
    return 'parent failed'
  elseif redis.call('HEXISTS', parent.hash, parent.results) == 1 or not is_its_child() then
    return 'gathered'
  elseif redis.call('EXISTS', parent.lock) == 1 then
    return 'gathering'
  end
  waits = not job.lost and redis.call('HEXISTS', parent.hash, parent.open) == 1
end
redis.call('RPUSH', job.waiting, ARGV[2]) -- first: what may be refused must not leave it half done
if waits then
  redis.call('HINCRBY', parent.hash, parent.open, 1)
end
redis.call(
  'HDEL', KEYS[1], 'done', 'failed', 'failedQueue', 'failedErrorMsg', 'canceled', 'flow:cancel',
  'retries:' .. job.queue, 'resets:' .. job.queue,
  'endedAtTimestamp'
)
redis.call('HSET', KEYS[1], 'flow:state', cjson.encode('waiting:' .. job.queue))
redis.call('ZREM', job.root .. ':failed', ARGV[2])
if job.again then
  redis.call('HSET', KEYS[1], job.again, 'true')
end
if job.holders and not redis.call('LPOS', job.holders, ARGV[2]) then
  redis.call('RPUSH', job.holders, ARGV[2]) -- a later job has removed the list
end
if job.life > 0 then
  redis.call('PEXPIRE', KEYS[1], job.life)
  for _, key in ipairs(job.kept) do
    redis.call('PEXPIRE', key, job.life)
  end
  return 'retried'
end
-- It has not ended any more, and the lists in which it can be found count it again (_life.lua).
local ended = redis.call('PTTL', KEYS[1]) >= 0
redis.call('PERSIST', KEYS[1])
for _, key in ipairs(job.kept) do
  redis.call('PERSIST', key)
end
local listed = redis.call('HGET', KEYS[1], 'lookups:lists')
for _, list in ipairs(ended and listed and cjson.decode(listed) or {}) do
  redis.call('INCR', job.prefix .. 'open:' .. string.sub(list, #job.prefix + #'job:' + 1))
  redis.call('PERSIST', list)
end
return 'retried'
