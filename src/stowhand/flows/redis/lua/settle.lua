-- with: queue life ending
-- Settle jobs, atomically. A settlement is recorded only if the job has the lock of its claim.
-- KEYS: the queue, the mark of this call. ARGV: queue, jobs (MessagePack: id, token, outcome and arguments of each):
--   complete   {name, number of priorities} of the next queue or false, {field, value, …}
--   park       {field, value, …}, {{id, queue, priority, {field, value, …}} for each child}
--   error      milliseconds until it is ready
--   snooze     milliseconds until it is ready, reason (JSON)
--   fail       message (JSON)
--   cancel     message (JSON)
-- A job with a cancellation request is canceled instead of waiting again, moving to its next queue, or waiting for
-- children.
-- Returns {1 if this call was executed before, else 0; a mark for each job: S settled, C canceled instead, F failed
-- instead, L lost, G lost and without a hash}.
local entries, ids = cmsgpack.unpack(ARGV[2]), {}
for index, entry in ipairs(entries) do
  ids[index] = entry[1]
end
local locks, marks = locks_of(ids, KEYS[2])

if marks then
  local results = {}
  for index = 1, #entries do
    -- The job is held again. In every store, a settlement of an earlier lease is then reported as lost.
    results[index] = locks[index] and 'L' or string.sub(marks, index, index)
  end
  return { 1, table.concat(results) }
end

local function put(key, fields)
  for from = 1, #fields, MAX_VALUES do
    redis.call('HSET', key, unpack(fields, from, math.min(from + MAX_VALUES - 1, #fields)))
  end
end

local pushes, lists = {}, {} -- positions of entries, by the list to which their ids are pushed
local function push(list, index)
  if not pushes[list] then
    pushes[list] = {}
    lists[#lists + 1] = list
  end
  table.insert(pushes[list], index)
end

local function change_for(flow)
  if type(queue.change) ~= 'table' then
    return queue.change
  end
  local ok, name = pcall(cjson.decode, flow or '')
  return queue.change[ok and type(name) == 'string' and name or queue.flow] or 0
end

local arrivals = {} -- state of a job that moves to a queue, by queue
local function arrival_at(name)
  arrivals[name] = arrivals[name] or cjson.encode('waiting:' .. name)
  return arrivals[name]
end

local outcomes = {}

function outcomes.complete(index, entry, hash, base, row)
  local target, fields = entry[4], entry[5]
  fields[#fields + 1] = STATE
  fields[#fields + 1] = target and arrival_at(target[1]) or state_of('completed')
  if not queue.lasting then
    fields[#fields + 1], fields[#fields + 2] = PASSED, cjson.encode(queue.name)
  end
  if not target and not queue.parent and #fields < MAX_VALUES then
    record_end(hash, row[8], row[9], fields)
    return
  end
  if not target and queue.parent then
    fields[#fields + 1], fields[#fields + 2] = 'done', 'true'
  end
  put(hash, fields)
  if target then
    local name, ranks = unpack(target)
    local before = queue.ranked and math.floor(tonumber(row[2] or 1) or 1) or 1
    local after = math.max(1, math.min(before + change_for(row[3]), ranks))
    if queue.ranked and after ~= before then
      redis.call('HSET', hash, 'priority', after)
    end
    if row[10] then
      redis.call('HDEL', hash, 'retries:' .. name) -- the job was in that queue before
    end
    push(base_at(name, after) .. ':waiting', index)
  elseif queue.parent then
    wake_parent(hash, row[4])
  else
    record_end(hash, row[8], row[9])
  end
end

function outcomes.park(index, entry, hash, base, row)
  local id = ids[index]
  put(hash, entry[4])
  if #entry[5] > 0 then
    -- Delete the results of an earlier run, and the request to create failed children again, which this call fulfils.
    redis.call('HDEL', hash, 'children:' .. queue.name .. ':results', 'children:' .. queue.name .. ':again')
    record_children(hash, row[9])
  end
  local made, from = 0, cjson.encode(id)
  for _, child in ipairs(entry[5]) do
    local child_id, name, rank, fields = unpack(child)
    local key = queue.prefix .. 'job:' .. (queue.lasting and '' or name .. ':') .. child_id
    if redis.call('ZREM', base_at(name, 1) .. ':failed', child_id) == 1 or redis.call('HEXISTS', key, 'failed') == 1 then
      redis.call('DEL', key) -- it is created again below
    end
    if redis.call('EXISTS', key) == 0 then
      made = made + 1
      fields[#fields + 1], fields[#fields + 2] = 'parent', from
      fields[#fields + 1], fields[#fields + 2] = STATE, arrival_at(name)
      put(key, fields)
      if not queue.lasting then
        redis.call('PEXPIRE', key, queue.key_life)
      end
      redis.call('RPUSH', base_at(name, rank) .. ':waiting', child_id)
    end
  end
  local open = #entry[5] > 0 and made == #entry[5] and made or open_children(hash)
  if open > 0 then
    park(id, base, open, now_ms())
  else
    redis.call('LPUSH', base .. ':waiting', id)
    set_state(id, 'waiting')
  end
end

function outcomes.error(index, entry, hash, base, row)
  local id, delay = ids[index], entry[4]
  redis.call('HSET', hash, RETRIES, count(row[5]) + 1, STATE, state_of('waiting'))
  if delay > 0 then
    local now = now_ms()
    delay_until(now + delay, base, id, now)
  else
    redis.call('LPUSH', base .. ':waiting', id)
  end
end

function outcomes.snooze(index, entry, hash, base)
  local id, delay, reason = ids[index], entry[4], entry[5]
  if delay <= 0 then
    push(base .. ':waiting', index)
    set_state(id, 'waiting')
    return
  end
  local now = now_ms()
  local ready = now + delay
  delay_until(ready, base, id, now)
  redis.call(
    'HSET', hash, 'delay', 'true', 'delayReason', reason, 'delayReadyTimestamp', string.format('%d', ready)
  )
end

function outcomes.fail(index, entry, hash, base, row)
  fail(ids[index], entry[4], row[4], row[8], row[9])
end

function outcomes.cancel(index, entry, hash, base, row)
  cancel(ids[index], entry[4], row[4], row[8], row[9])
end

local WAITING_OUTCOMES = { error = true, snooze = true, park = true }

local results, freed_keys, sources = {}, {}, {}

-- Jobs of one claim are usually together at the head of processing, and usually end together. So the head of each list
-- is read once, and its ids are removed with one command. The very first id is removed at once: if its memory is full,
-- a server lets a script write only after it has removed something.
local heads, has_removed = {}, false

local function remove_heads(processing)
  local head = heads[processing]
  if head.taken > 0 then
    redis.call('LPOP', processing, head.taken)
    head.taken = 0
  end
end

local function remove_settled(id, priority)
  if #entries == 1 then
    return remove_from_processing(id, priority, 1)
  end
  local likely = base_of(queue.bases, priority)
  local processing = likely .. ':processing'
  if not heads[processing] then
    heads[processing] = { ids = redis.call('LRANGE', processing, 0, #entries - 1), at = 1, taken = 0 }
  end
  local head = heads[processing]
  if head.ids[head.at] == id then
    head.at = head.at + 1
    if has_removed then
      head.taken = head.taken + 1
    else
      has_removed = redis.call('LPOP', processing)
    end
    return likely
  end
  for each, other in pairs(heads) do
    remove_heads(each)
    other.at = #entries + 1 -- the positions of the other ids are unknown from here on, so they are removed one by one
  end
  return remove_from_processing(id, priority, 1)
end

-- A settlement that cannot be written fails only its own job. If that is refused too, the job stays in processing with
-- its lock.
local function fail_unwritten(index, problem)
  local id, from = ids[index], sources[index]
  local message = cjson.encode('its end could not be written: ' .. error_text(problem))
  if pcall(fail, id, message, from.parent, from.lists, from.queues) then
    results[index] = 'F'
    return
  end
  redis.call('RPUSH', from.base .. ':processing', id)
  results[index] = 'L'
end

for index, entry in ipairs(entries) do
  local id = entry[1]
  results[index] = 'L'
  if is_ours(locks[index], entry[2]) then
    local target = entry[3] == 'complete' and entry[4]
    local row, read_error = fields_of(
      id, RESETS, 'priority', 'flowName', 'parent', RETRIES, 'createdAtTimestamp', 'correlationId', LISTS, QUEUES,
      target and 'retries:' .. target[1] or RETRIES, CANCEL
    )
    local base = not read_error and remove_settled(id, row and row[2])
    if base and row then
      local hash = queue.hashes .. id
      results[index], sources[index] = 'S', { base = base, parent = row[4], lists = row[8], queues = row[9] }
      local ok, problem
      if row[11] and (target or WAITING_OUTCOMES[entry[3]]) then
        results[index] = 'C'
        ok, problem = pcall(cancel, id, CANCELED_MESSAGE, row[4], row[8], row[9])
      else
        ok, problem = pcall(outcomes[entry[3]], index, entry, hash, base, row)
      end
      if not ok then
        fail_unwritten(index, problem)
      elseif row[1] or row[11] then
        redis.call('HDEL', hash, RESETS, CANCEL)
      end
    elseif not row and not read_error then
      results[index] = 'G'
      freed_keys[#freed_keys + 1] = queue.locks .. id
    end
  elseif redis.call('EXISTS', queue.hashes .. id) == 0 then
    results[index] = 'G'
  end
end
for processing in pairs(heads) do
  remove_heads(processing)
end
for _, list in ipairs(lists) do
  for from = 1, #pushes[list], MAX_VALUES do
    local pushed_ids = {}
    for place = from, math.min(from + MAX_VALUES - 1, #pushes[list]) do
      pushed_ids[#pushed_ids + 1] = ids[pushes[list][place]]
    end
    local ok, problem = pcall(redis.call, 'RPUSH', list, unpack(pushed_ids))
    for place = from, ok and 0 or from + #pushed_ids - 1 do
      fail_unwritten(pushes[list][place], problem)
    end
  end
end
for index, mark in ipairs(results) do
  if mark == 'S' or mark == 'C' or mark == 'F' then
    freed_keys[#freed_keys + 1] = queue.locks .. ids[index]
  end
end
for from = 1, #freed_keys, MAX_VALUES do
  redis.call('DEL', unpack(freed_keys, from, math.min(from + MAX_VALUES - 1, #freed_keys)))
end
local verdicts = table.concat(results)
if string.find(verdicts, '[SCF]') then
  redis.call('SET', KEYS[2], verdicts, 'EX', 120)
end
return { 0, verdicts }
