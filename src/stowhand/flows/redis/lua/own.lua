-- Mark queues as owned by a flow. ARGV: the flow, then the owner's key of each queue. KEYS: any key of the flow.
-- Returns {}; or, without marking any queue, {position, flow} of the first queue that another flow owns.
for place = 2, #ARGV do
  local owner = redis.call('GET', ARGV[place])
  if owner and owner ~= ARGV[1] then
    return { place - 1, owner }
  end
end
for place = 2, #ARGV do
  if redis.call('EXISTS', ARGV[place]) == 0 then
    local reply = redis.pcall('SET', ARGV[place], ARGV[1])
    -- If the server's memory is full, only finished jobs make room, so workers must start. The sweep marks the queue
    -- later.
    if reply.err and not string.find(reply.err, 'maxmemory', 1, true) then
      return reply
    end
  end
end
return {}
