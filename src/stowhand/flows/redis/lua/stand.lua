-- Where one job stands. KEYS: any of the flow. ARGV: its id as it stands in lists, then of each queue that it may be in:
-- its root, how many priorities, their bases.
-- Gives {place of the queue, 'waiting', 'processing', 'delayed' or 'parked', when it is ready}; {0}: nowhere.
local id = ARGV[1]
local place, queue = 2, 0
while ARGV[place] do
  queue = queue + 1
  local root, last = ARGV[place], place + 1 + tonumber(ARGV[place + 1])
  for at = place + 2, last do
    local base = ARGV[at]
    if redis.call('LPOS', base .. ':processing', id) then
      return { queue, 'processing' }
    end
    for _, kind in ipairs({ ':moved', ':waiting' }) do
      if redis.call('LPOS', base .. kind, id) then
        return { queue, 'waiting' }
      end
    end
    local ready = redis.call('ZSCORE', base .. ':delayed', id)
    if ready then
      return { queue, 'delayed', ready }
    elseif redis.call('ZSCORE', base .. ':parked', id) then
      return { queue, 'parked' }
    end
  end
  if redis.call('LPOS', root .. ':suspects', id) then
    return { queue, 'waiting' }
  end
  place = last + 1
end
return { 0 }
