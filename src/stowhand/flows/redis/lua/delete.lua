-- Delete a job, its children and its lookups. What waits leaves its list; what runs finds nothing to write to.
-- KEYS: its hash. ARGV: the job as JSON, and its id as it stands in lists (any bytes):
--   lookups   lists that it can be found in
--   queues    where it may lie: by name the queues' addresses
--   parents   names of the queues that it may have children of
--   children  the queues of children, each with what its hashes begin with (named) and what is left out of ids (hashes)
--   classic   the original may have moved it on
--   prefix    what every key begins with
--   life      milliseconds that what has ended is kept
-- Gives 1, or 0 where there was none.
local job, id = cjson.decode(ARGV[1]), ARGV[2]

local function text_of(value)
  local sound, plain = pcall(cjson.decode, value or '')
  if not sound or plain == cjson.null then
    return 'default'
  end
  return type(plain) == 'string' and plain or value
end

-- A limiter counts those that wait for one of its windows: this one does not any more.
local function uncount(limiter, hash)
  if redis.call('HGET', hash, 'delayReason') ~= limiter.reason then
    return
  end
  local waiting = limiter.enqueued .. (limiter.group and text_of(redis.call('HGET', hash, limiter.group)) or 'default')
  if tonumber(redis.call('GET', waiting) or 0) > 0 then
    redis.call('DECR', waiting)
  end
end

local CHUNK = 1000 -- values in one call: a Lua stack has room for some thousands
local FEW = 8 -- ids that are looked for one by one; for more of one list the whole list is read once
local lists, gone = {}, {} -- lists that have ids to be taken out; by list: those ids

local function take_from(list, id)
  if not gone[list] then
    lists[#lists + 1], gone[list] = list, {}
  end
  table.insert(gone[list], id)
end

local function rewrite(list, ids)
  local is_gone, left = {}, redis.pcall('LLEN', list)
  for _, id in ipairs(ids) do
    is_gone[id] = true
  end
  while type(left) == 'number' and left > 0 do
    local kept, page = {}, redis.call('LPOP', list, math.min(left, CHUNK))
    for _, id in ipairs(page) do
      kept[#kept + 1] = not is_gone[id] and id or nil
    end
    if #kept > 0 then
      redis.call('RPUSH', list, unpack(kept))
    end
    left = left - #page
  end
end

local function take_from_lists()
  for _, list in ipairs(lists) do
    if #gone[list] > FEW then
      rewrite(list, gone[list])
    else
      for _, id in ipairs(gone[list]) do
        redis.pcall('LREM', list, 0, id) -- whatever else may have its name
      end
    end
  end
end

local function take_out(queue, id, hash)
  for _, base in ipairs(queue.bases) do
    if redis.call('ZREM', base .. ':delayed', id) == 1 and queue.limiter then
      uncount(queue.limiter, hash)
    end
    redis.call('ZREM', base .. ':parked', id)
    take_from(base .. ':waiting', id)
    take_from(base .. ':moved', id)
  end
  take_from(queue.root .. ':suspects', id)
  redis.call('ZREM', queue.root .. ':failed', id)
end

-- The hash is the user's own, and may name any key: only children's are deleted.
local function forget_child(key)
  for _, queue in ipairs(job.children) do
    if string.sub(key, 1, #queue.named) == queue.named then
      if redis.call('TYPE', key).ok == 'hash' then
        if string.match(text_of(redis.call('HGET', key, 'flow:state')), '^%a+') ~= 'completed' then
          take_out(queue, string.sub(key, #queue.hashes + 1), key)
        end
        redis.call('DEL', key)
      end
      return
    end
  end
end

-- The queue that its hash names; all of them where the original may have moved it on.
local function queues_of(hash)
  local row = redis.call('HMGET', hash, 'flow:state', 'flow:passed', 'completed-queue')
  local queue = job.queues[string.match(text_of(row[1]), ':(.*)$') or '']
  if queue and (not job.classic or row[2] == row[3]) then
    return { queue }
  end
  return job.queues
end

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
  return 0
end
for _, parent in ipairs(job.parents) do
  local sound, keys = pcall(cjson.decode, redis.call('HGET', KEYS[1], 'children:' .. parent .. ':jobs') or '')
  if sound and type(keys) == 'table' then
    for _, key in ipairs(keys) do
      if type(key) == 'string' then
        forget_child(key)
      end
    end
  end
end
for _, queue in pairs(queues_of(KEYS[1])) do
  take_out(queue, id, KEYS[1])
end
take_from_lists()
-- As long as it has not ended, the lists that it was put into count it (_life.lua).
local listed = redis.call('HGET', KEYS[1], 'lookups:lists')
local counted = listed and redis.call('PTTL', KEYS[1]) == -1
for _, list in ipairs(listed and cjson.decode(listed) or job.lookups) do
  redis.pcall('LREM', list, 0, id) -- whatever else may have its name
  local counter = job.prefix .. 'open:' .. string.sub(list, #job.prefix + #'job:' + 1)
  if counted and redis.call('DECR', counter) <= 0 then
    redis.call('DEL', counter)
    redis.call('PEXPIRE', list, job.life)
  end
end
redis.call('DEL', KEYS[1])
return 1
