-- with: queue life ending
-- Cancel a job of this queue: at once if it waits; one that runs is asked to stop, which its worker hears at its next
-- heartbeat (beat.lua). KEYS: its hash. ARGV: queue, id.
-- Gives 'canceled', 'asked', or 'changed': it has ended, or is not in this queue any more.
local id = ARGV[2]
local row, hidden = fields_of(id, 'failed', 'parent', LISTS, QUEUES)
if hidden then
  return { err = hidden }
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
