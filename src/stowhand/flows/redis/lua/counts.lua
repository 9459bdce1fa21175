-- How many jobs stand where, in one moment. KEYS: any of the flow. ARGV: then for each queue: its root, '1' for the
-- first of its priorities, the address of the priority's lists.
-- Gives waiting, processing, delayed, parked, failed of each, and 1 where the queue is paused. Those that run apart wait too: they count with the first
-- priority, as failed ones do. So do those for which a worker was just woken.
local found = {}
for place = 1, #ARGV, 3 do
  local root, base = ARGV[place], ARGV[place + 2]
  local apart = ARGV[place + 1] == '1' and redis.call('LLEN', root .. ':suspects') or 0
  found[#found + 1] = {
    redis.call('LLEN', base .. ':waiting') + redis.call('LLEN', base .. ':moved') + apart,
    redis.call('LLEN', base .. ':processing'),
    redis.call('ZCARD', base .. ':delayed'),
    redis.call('ZCARD', base .. ':parked'),
    ARGV[place + 1] == '1' and redis.call('ZCARD', root .. ':failed') or 0,
    redis.call('EXISTS', root .. ':paused'),
  }
end
return found
