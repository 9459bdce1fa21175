-- with: queue life ending
-- Record how jobs left processing: each under the lock of its claim, or not at all; all of them in this one step.
-- KEYS: the queue, the mark of this call. ARGV: queue, jobs (MessagePack: of each id, token, outcome and what belongs
-- to that):
--   complete   {name, number of priorities} of the next queue or false, {field, value, …}
--   park       {field, value, …}, {{id, queue, priority, {field, value, …}} for each child}
--   error      milliseconds until it is ready
--   snooze     milliseconds until it is ready, reason (JSON)
--   fail       message (JSON)
--   cancel     message (JSON)
-- One that was asked to cancel is canceled instead of waiting again, for its next queue or for children.
-- Gives {1 if this call was executed before, what became of each: S settled, C canceled instead, F failed instead, L
-- lost, G lost and its hash is gone}.
local entries, ids = cmsgpack.unpack(ARGV[2]), {}
for index, entry in ipairs(entries) do
  ids[index] = entry[1]
end
local locks, marks = locks_of(ids, KEYS[2])

if marks then
  local known = {}
  for index = 1, #entries do
    -- Held again: by the word of every store, what was settled under an earlier lease is of the past.
    known[index] = locks[index] and 'L' or string.sub(marks, index, index)
  end
  return { 1, table.concat(known) }
end

local function put(key, fields)
  for from = 1, #fields, CHUNK do
    redis.call('HSET', key, unpack(fields, from, math.min(from + CHUNK - 1, #fields)))
  end
end

local pushes, lists = {}, {} -- places of entries, by the list that their ids go to
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
  local sound, name = pcall(cjson.decode, flow or '')
  return queue.change[sound and type(name) == 'string' and name or queue.flow] or 0
end

local arrivals = {} -- by queue: the state of a job that goes on to it
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
  if not target and not queue.parent and #fields < CHUNK then
    ended(hash, row[8], row[9], fields)
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
      redis.call('HDEL', hash, 'retries:' .. name) -- it has been there before
    end
    push(base_at(name, after) .. ':waiting', index)
  elseif queue.parent then
    tell_parent(hash, row[4])
  else
    ended(hash, row[8], row[9])
  end
end

function outcomes.park(index, entry, hash, base, row)
  local id = ids[index]
  put(hash, entry[4])
  if #entry[5] > 0 then
    -- Of an earlier time; and the order to make failed children anew, which this fulfils.
    redis.call('HDEL', hash, 'children:' .. queue.name .. ':results', 'children:' .. queue.name .. ':again')
    has_children(hash, row[9])
  end
  local made, from = 0, cjson.encode(id)
  for _, child in ipairs(entry[5]) do
    local child_id, name, rank, fields = unpack(child)
    local key = queue.prefix .. 'job:' .. (queue.lasting and '' or name .. ':') .. child_id
    if redis.call('ZREM', base_at(name, 1) .. ':failed', child_id) == 1 or redis.call('HEXISTS', key, 'failed') == 1 then
      redis.call('DEL', key) -- it is made anew
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

local RETURNS = { error = true, snooze = true, park = true }

local known, freed, left = {}, {}, {}

-- What was claimed together stands together in processing, mostly at its head, and mostly ends together: the ids at the
-- head of each list, and how many of them are to be taken out in one command. The very first is taken out at once: where
-- memory is full, a server lets a script write only once it has removed something.
local heads, has_removed = {}, false

local function take_heads(processing)
  local head = heads[processing]
  if head.taken > 0 then
    redis.call('LPOP', processing, head.taken)
    head.taken = 0
  end
end

local function take_out(id, priority)
  if #entries == 1 then
    return take_from_processing(id, priority, 1)
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
    take_heads(each)
    other.at = #entries + 1 -- from here on one by one: where the rest stands is not known any more
  end
  return take_from_processing(id, priority, 1)
end

-- What cannot be written fails that job, and no other. Where that is refused too, it stays in processing under its lock.
local function give_up(index, trouble)
  local id, from = ids[index], left[index]
  local message = cjson.encode('its end could not be written: ' .. words_of(trouble))
  if pcall(fail, id, message, from.parent, from.lists, from.queues) then
    known[index] = 'F'
    return
  end
  redis.call('RPUSH', from.base .. ':processing', id)
  known[index] = 'L'
end

for index, entry in ipairs(entries) do
  local id = entry[1]
  known[index] = 'L'
  if is_ours(locks[index], entry[2]) then
    local target = entry[3] == 'complete' and entry[4]
    local row, hidden = fields_of(
      id, RESETS, 'priority', 'flowName', 'parent', RETRIES, 'createdAtTimestamp', 'correlationId', LISTS, QUEUES,
      target and 'retries:' .. target[1] or RETRIES, CANCEL
    )
    local base = not hidden and take_out(id, row and row[2])
    if base and row then
      local hash = queue.hashes .. id
      known[index], left[index] = 'S', { base = base, parent = row[4], lists = row[8], queues = row[9] }
      local sound, trouble
      if row[11] and (target or RETURNS[entry[3]]) then
        known[index] = 'C'
        sound, trouble = pcall(cancel, id, CANCELED, row[4], row[8], row[9])
      else
        sound, trouble = pcall(outcomes[entry[3]], index, entry, hash, base, row)
      end
      if not sound then
        give_up(index, trouble)
      elseif row[1] or row[11] then
        redis.call('HDEL', hash, RESETS, CANCEL)
      end
    elseif not row and not hidden then
      known[index] = 'G'
      freed[#freed + 1] = queue.locks .. id
    end
  elseif redis.call('EXISTS', queue.hashes .. id) == 0 then
    known[index] = 'G'
  end
end
for processing in pairs(heads) do
  take_heads(processing)
end
for _, list in ipairs(lists) do
  for from = 1, #pushes[list], CHUNK do
    local going = {}
    for place = from, math.min(from + CHUNK - 1, #pushes[list]) do
      going[#going + 1] = ids[pushes[list][place]]
    end
    local sound, trouble = pcall(redis.call, 'RPUSH', list, unpack(going))
    for place = from, sound and 0 or from + #going - 1 do
      give_up(pushes[list][place], trouble)
    end
  end
end
for index, mark in ipairs(known) do
  if mark == 'S' or mark == 'C' or mark == 'F' then
    freed[#freed + 1] = queue.locks .. ids[index]
  end
end
for from = 1, #freed, CHUNK do
  redis.call('DEL', unpack(freed, from, math.min(from + CHUNK - 1, #freed)))
end
local verdicts = table.concat(known)
if string.find(verdicts, '[SCF]') then
  redis.call('SET', KEYS[2], verdicts, 'EX', 120)
end
return { 0, verdicts }
