-- Return one job, atomically. KEYS: its hash. ARGV: its id in lists; the flow's queues as JSON: root and bases by name;
-- '1' in the classic layout.
-- The hash names the job's state and queue. The lists of the queue refine that: a worker of the original may have
-- claimed the job since, a delayed job has a time, and a lost job is in no list. If the original has completed a queue
-- since (classic), no script of ours has recorded where the job went, so all queues of the flow are searched.
-- Returns {the hash; name of the queue whose lists contain the job, or ''; its state there; time at which it is ready,
-- or ''}.
local id, queues = ARGV[1], cjson.decode(ARGV[2])
local row = redis.pcall('HGETALL', KEYS[1])
if row.err or #row == 0 then
  return { {}, '', '', '' }
end
local fields = {}
for place = 1, #row, 2 do
  fields[row[place]] = row[place + 1]
end
local ok, written = pcall(cjson.decode, fields['flow:state'] or '')
local state, name = string.match(ok and type(written) == 'string' and written or '', '^(%a+):(.*)$')

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

local moved = not state or ARGV[3] == '1' and fields['flow:passed'] ~= fields['completed-queue']
if not moved and (state == 'completed' or state == 'failed' or state == 'canceled') then
  return { row, '', '', '' }
end
for each, queue in pairs(queues) do
  if moved or each == name then
    local found_state, ready = find(queue)
    if found_state then
      return { row, each, found_state, ready }
    end
  end
end
return { row, '', '', '' }
