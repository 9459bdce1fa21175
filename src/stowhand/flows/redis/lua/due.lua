-- with: queue
-- Keep the time of one queue: a delayed job that has become ready wakes an idle worker. ARGV: queue, worker, milliseconds
-- that it is the timekeeper from now on; 0: it stops being it.
-- Idle workers block on the list of those that wait, and workers that claim take what is ready by themselves, in its
-- order. So one is moved to that list at a time, and only while it is empty: then a worker that blocks there gets it at once.
-- Gives {'0' where another worker is the timekeeper, milliseconds until the next is ready: 0 where one was lent and more are,
-- -1 where none is delayed or all are busy}.
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

local function lend(base)
  local first = redis.call('ZRANGE', base .. ':delayed', 0, 0, 'WITHSCORES')
  if not first[2] then
    return
  end
  local wait = math.max(math.ceil(tonumber(first[2]) - now), 0)
  if wait == 0 then
    if redis.call('EXISTS', base .. ':waiting', base .. ':moved') > 0 then
      return -- the worker that claims that one takes this first
    end
    redis.call('RPUSH', base .. ':waiting', first[1]) -- first: where it is refused, it stays
    redis.call('ZREM', base .. ':delayed', first[1])
    redis.call('SET', base .. ':lent', first[1], 'PX', 60000)
  end
  due = due < 0 and wait or math.min(due, wait)
end

for _, base in ipairs(queue.bases) do
  pcall(lend, base) -- an error of one list is reported by the sweep
end
return { 1, due }
