-- with: queue life
-- Delete a job, its children and its lookups. What waits leaves its list; what runs finds nothing to write to.
-- KEYS: its hash. ARGV: the queue in which jobs begin, its id as it stands in lists (any bytes), and as JSON the places of
-- all queues of the flow, by name: root, bases, limiter, what its ids in lists are appended to (hashes), and what the
-- hashes of children begin with (named).
-- Gives 1, or 0 where there was none.
local id, places = ARGV[2], cjson.decode(ARGV[3])
for name, place in pairs(places) do
  if place.limiter then
    name_counters(place.limiter, name)
  end
end

-- State and queue of a job, as our scripts have written them.
local function written_in(hash)
  local sound, text = pcall(cjson.decode, redis.call('HGET', hash, STATE) or '')
  return string.match(sound and type(text) == 'string' and text or '', '^(%a+):(.*)$')
end

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

local function take_out(place, id, hash)
  for _, base in ipairs(place.bases) do
    if redis.call('ZREM', base .. ':delayed', id) == 1 and place.limiter then
      uncount(place.limiter, hash)
    end
    redis.call('ZREM', base .. ':parked', id)
    take_from(base .. ':waiting', id)
    take_from(base .. ':moved', id)
  end
  take_from(place.root .. ':suspects', id)
  redis.call('ZREM', place.root .. ':failed', id)
end

-- The hash is the user's own, and may name any key: only children's are deleted.
local function forget_child(key)
  for _, place in pairs(places) do
    if place.named and string.sub(key, 1, #place.named) == place.named then
      if redis.call('TYPE', key).ok == 'hash' then
        if written_in(key) ~= 'completed' then
          take_out(place, string.sub(key, #place.hashes + 1), key)
        end
        redis.call('DEL', key)
      end
      return
    end
  end
end

if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
  return 0
end
for _, parent in ipairs(queue.parents) do
  for _, key in ipairs(children_of(KEYS[1], parent)) do
    if type(key) == 'string' then
      forget_child(key)
    end
  end
end
-- The queue that its hash names; all of them where the original may have moved it on.
local _, name = written_in(KEYS[1])
local row = redis.call('HMGET', KEYS[1], PASSED, 'completed-queue')
if places[name or ''] and (queue.lasting or row[1] == row[2]) then
  take_out(places[name], id, KEYS[1])
else
  for _, place in pairs(places) do
    if not place.named then
      take_out(place, id, KEYS[1])
    end
  end
end
take_from_lists()
-- As long as it has not ended, the lists that it was put into count it.
local listed = redis.call('HGET', KEYS[1], LISTS)
local counted = listed and redis.call('PTTL', KEYS[1]) == -1
for _, list in ipairs(listed and texts_in(listed) or lists_of(KEYS[1])) do
  redis.pcall('LREM', list, 0, id) -- whatever else may have its name
  if counted and redis.call('DECR', counter_of(list)) <= 0 then
    redis.call('DEL', counter_of(list))
    redis.call('PEXPIRE', list, queue.key_life)
  end
end
redis.call('DEL', KEYS[1])
return 1
