-- with: queue life ending
-- Cancel a job of this queue: a waiting job at once. For a running job, record a request, which its worker sees at its
-- next heartbeat (beat.lua). KEYS: its hash. ARGV: queue, id.
-- Returns 'canceled', 'asked', or 'changed': the job has ended, or is no longer in this queue.
local id = ARGV[2]
local row, read_error = fields_of(id, 'failed', 'parent', LISTS, QUEUES)
if read_error then
  return { err = read_error }
elseif not row or row[1] then
  return 'changed'
end
for _, base in ipairs(queue.bases) do
  if redis.call('LPOS', base .. ':processing', id) then
    redis.call('HSET', KEYS[1], CANCEL, 'true')
    return 'asked'
  end
end

local removed = redis.call('LREM', queue.root .. ':suspects', 0, id)
for _, base in ipairs(queue.bases) do
  for _, kind in ipairs({ ':waiting', ':moved' }) do
    removed = removed + redis.call('LREM', base .. kind, 0, id)
  end
  for _, kind in ipairs({ ':delayed', ':parked' }) do
    removed = removed + redis.call('ZREM', base .. kind, id)
  end
end
if removed == 0 then
  return 'changed'
end
if queue.limiter then
  uncount(queue.limiter, KEYS[1])
end
redis.call('HDEL', KEYS[1], 'delay', 'delayReason', 'delayReadyTimestamp', 'children:' .. queue.name .. ':open')
cancel(id, '"canceled"', row[2], row[3], row[4])
return 'canceled'
