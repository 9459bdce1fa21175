-- One job, in one moment. KEYS: its hash. ARGV: its id as it stands in lists; the flow's queues as JSON: by name root and
-- bases; '1' in the classic layout.
-- Its hash names its state and its queue. The queue's lists only refine that: whether a worker of the original has taken
-- the job since, when it is ready, or that no list has it (lost). Where the original has completed a queue since
-- (classic), no script of ours has written where the job went: then every queue of the flow is looked at.
-- Gives {the hash, name of the queue whose lists have it or '', its state there, when it is ready or ''}.
local id, queues = ARGV[1], cjson.decode(ARGV[2])
local row = redis.pcall('HGETALL', KEYS[1])
if row.err or #row == 0 then
  return { {}, '', '', '' }
end
local known = {}
for place = 1, #row, 2 do
  known[row[place]] = row[place + 1]
end
local sound, written = pcall(cjson.decode, known['flow:state'] or '')
local state, name = string.match(sound and type(written) == 'string' and written or '', '^(%a+):(.*)$')

local function find(queue)
  for _, base in ipairs(queue.bases) do
    if redis.call('LPOS', base .. ':processing', id) then
      return 'processing', ''
    end
    local ready = redis.call('ZSCORE', base .. ':delayed', id)
    if ready then
      return 'delayed', ready
    elseif redis.call('ZSCORE', base .. ':parked', id) then
      return 'parked', ''
    end
    for _, kind in ipairs({ ':moved', ':waiting' }) do
      if redis.call('LPOS', base .. kind, id) then
        return 'waiting', ''
      end
    end
  end
  if redis.call('LPOS', queue.root .. ':suspects', id) then
    return 'waiting', ''
  end
end

local moved = not state or ARGV[3] == '1' and known['flow:passed'] ~= known['completed-queue']
if not moved and (state == 'completed' or state == 'failed' or state == 'canceled') then
  return { row, '', '', '' }
end
for each, queue in pairs(queues) do
  if moved or each == name then
    local found, ready = find(queue)
    if found then
      return { row, each, found, ready }
    end
  end
end
return { row, '', '', '' }
