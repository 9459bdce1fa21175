-- with: queue
-- Return the milliseconds until the first job is ready: 0 if one is ready, -1 if none waits. ARGV: queue.
local now = now_ms()
local due = -1
if redis.call('EXISTS', queue.root .. ':suspects') == 1 then
  return 0
end
for _, base in ipairs(queue.bases) do
  if redis.call('EXISTS', base .. ':waiting', base .. ':moved') > 0 then
    return 0
  end
  local first = redis.call('ZRANGE', base .. ':delayed', 0, 0, 'WITHSCORES')
  if first[2] then
    local wait = math.max(math.ceil(tonumber(first[2]) - now), 0)
    due = due < 0 and wait or math.min(due, wait)
  end
end
return due
