-- Put a failed job back into the queue in which it failed, as if it had just come there.
-- KEYS: its hash. ARGV: the job as JSON, and its id as it stands in lists (any bytes):
--   failed, failed_queue       as they were read; it must not have changed since
--   queue, waiting             the queue's name, and the list to be put into
--   life                       milliseconds that it is kept from now on; 0: until it has ended
--   kept                       keys that live as long: its lookups, its children
--   prefix                     what every key begins with
--   parent                     of a child: hash, lock, and the fields jobs, open and results
-- Gives 'retried', or why not.
local job = cjson.decode(ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'failed', 'failedQueue')
if row[1] ~= job.failed or row[2] ~= job.failed_queue then
  return 'changed'
end
local parent, waits = job.parent, false

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
  elseif redis.call('HEXISTS', parent.hash, parent.results) == 1 or not is_its_child() then
    return 'gathered'
  elseif redis.call('EXISTS', parent.lock) == 1 then
    return 'gathering'
  end
  waits = redis.call('HEXISTS', parent.hash, parent.open) == 1
end
redis.call('RPUSH', job.waiting, ARGV[2]) -- first: what may be refused must not leave it half done
if waits then
  redis.call('HINCRBY', parent.hash, parent.open, 1)
end
redis.call(
  'HDEL', KEYS[1], 'done', 'failed', 'failedQueue', 'failedErrorMsg', 'canceled',
  'retries:' .. job.queue, 'resets:' .. job.queue, 'suspect:' .. job.queue,
  'endedAtTimestamp'
)
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
