-- Say whose queues these are. ARGV: the flow, then the mark of each queue; KEYS: any of the flow.
-- Gives {}; or, and then nothing is marked, {place, name of the flow that one of them is marked for}.
for place = 2, #ARGV do
  local owner = redis.call('GET', ARGV[place])
  if owner and owner ~= ARGV[1] then
    return { place - 1, owner }
  end
end
for place = 2, #ARGV do
  if redis.call('EXISTS', ARGV[place]) == 0 then
    local reply = redis.pcall('SET', ARGV[place], ARGV[1])
    -- Where memory is full, workers make room by working: the sweep marks it again.
    if reply.err and not string.find(reply.err, 'maxmemory', 1, true) then
      return reply
    end
  end
end
return {}
