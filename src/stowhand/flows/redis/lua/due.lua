-- with: queue
-- Run the timekeeper of one queue: a delayed job that becomes ready wakes an idle worker. ARGV: queue; worker;
-- milliseconds for which it is the timekeeper, or 0 to stop.
-- Idle workers block on the waiting list, and claims take ready jobs in their order. So the timekeeper moves one job at
-- a time to that list, and only while the list is empty: then a worker that blocks there gets it at once.
-- Returns {0 if another worker is the timekeeper, else 1; milliseconds until the next job is ready: 0 if a job was
-- moved, -1 if none is delayed or all workers are busy}.
local timer = queue.root .. ':timer'
local keeper = redis.call('GET', timer)
if keeper and keeper ~= ARGV[2] then
  return { 0, -1 }
end
if ARGV[3] == '0' then
  redis.call('DEL', timer)
  return { 0, -1 }
end
redis.call('SET', timer, ARGV[2], 'PX', ARGV[3])
local now, due = now_ms(), -1

local function promote_first(base)
  local first = redis.call('ZRANGE', base .. ':delayed', 0, 0, 'WITHSCORES')
  if not first[2] then
    return
  end
  local wait = math.max(math.ceil(tonumber(first[2]) - now), 0)
  if wait == 0 then
    if redis.call('EXISTS', base .. ':waiting', base .. ':moved') > 0 then
      return -- the worker that claims the job in that list claims this one first
    end
    redis.call('RPUSH', base .. ':waiting', first[1]) -- before ZREM: if the push is refused, the job stays delayed
    redis.call('ZREM', base .. ':delayed', first[1])
    redis.call('SET', base .. ':lent', first[1], 'PX', 60000)
  end
  due = due < 0 and wait or math.min(due, wait)
end

for _, base in ipairs(queue.bases) do
  pcall(promote_first, base) -- the sweep reports an error of one list
end
return { 1, due }
