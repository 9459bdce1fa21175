-- Count jobs by state, atomically. KEYS: any key of the flow. ARGV for each priority of each queue: the root of the
-- queue, '1' for the first priority, the base of the priority's lists.
-- Returns for each: waiting, processing, delayed, parked, failed, and 1 if the queue is paused. Suspects count as
-- waiting at the first priority, and failed jobs count there too. Jobs for which a worker was just woken count as
-- waiting.
local rows = {}
for place = 1, #ARGV, 3 do
  local root, base = ARGV[place], ARGV[place + 2]
  local apart = ARGV[place + 1] == '1' and redis.call('LLEN', root .. ':suspects') or 0
  rows[#rows + 1] = {
    redis.call('LLEN', base .. ':waiting') + redis.call('LLEN', base .. ':moved') + apart,
    redis.call('LLEN', base .. ':processing'),
    redis.call('ZCARD', base .. ':delayed'),
    redis.call('ZCARD', base .. ':parked'),
    ARGV[place + 1] == '1' and redis.call('ZCARD', root .. ':failed') or 0,
    redis.call('EXISTS', root .. ':paused'),
  }
end
return rows
