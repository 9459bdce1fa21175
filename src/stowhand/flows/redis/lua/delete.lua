-- with: queue life
-- Delete a job, its children and its lookups. Waiting jobs leave their lists; running jobs find no hash to write to.
-- KEYS: its hash. ARGV: the entry queue; the id in lists (any bytes); and as JSON all queues of the flow, by name:
-- root, bases, limiter, prefix of the hashes of ids in lists (hashes), and prefix of the hashes of children (named).
-- Returns 1, or 0 if the job does not exist.
local id, places = ARGV[2], cjson.decode(ARGV[3])
for name, place in pairs(places) do
  if place.limiter then
    name_counters(place.limiter, name)
  end
end

-- Returns the state and the queue of a job, as our scripts have recorded them.
local function state_in(hash)
  local ok, text = pcall(cjson.decode, redis.call('HGET', hash, STATE) or '')
  return string.match(ok and type(text) == 'string' and text or '', '^(%a+):(.*)$')
end

local MAX_SINGLE_REMOVALS = 8 -- maximum number of ids removed from a list one by one; for more, the list is rewritten
local lists, removals = {}, {} -- lists with ids to remove, in order; and the ids by list

local function plan_removal(list, id)
  if not removals[list] then
    lists[#lists + 1], removals[list] = list, {}
  end
  table.insert(removals[list], id)
end

local function rewrite(list, ids)
  local is_gone, left = {}, redis.pcall('LLEN', list)
  for _, id in ipairs(ids) do
    is_gone[id] = true
  end
  while type(left) == 'number' and left > 0 do
    local kept, page = {}, redis.call('LPOP', list, math.min(left, MAX_VALUES))
    for _, id in ipairs(page) do
      kept[#kept + 1] = not is_gone[id] and id or nil
    end
    if #kept > 0 then
      redis.call('RPUSH', list, unpack(kept))
    end
    left = left - #page
  end
end

local function remove_from_lists()
  for _, list in ipairs(lists) do
    if #removals[list] > MAX_SINGLE_REMOVALS then
      rewrite(list, removals[list])
    else
      for _, id in ipairs(removals[list]) do
        redis.pcall('LREM', list, 0, id) -- the key may have another type
      end
    end
  end
end

local function remove_job(place, id, hash)
  for _, base in ipairs(place.bases) do
    if redis.call('ZREM', base .. ':delayed', id) == 1 and place.limiter then
      uncount(place.limiter, hash)
    end
    redis.call('ZREM', base .. ':parked', id)
    plan_removal(base .. ':waiting', id)
    plan_removal(base .. ':moved', id)
  end
  plan_removal(place.root .. ':suspects', id)
  redis.call('ZREM', place.root .. ':failed', id)
end

-- Deletes a child. A user may write any key into the list of children, so only keys of children are deleted.
local function delete_child(key)
  for _, place in pairs(places) do
    if place.named and string.sub(key, 1, #place.named) == place.named then
      if redis.call('TYPE', key).ok == 'hash' then
        if state_in(key) ~= 'completed' then
          remove_job(place, string.sub(key, #place.hashes + 1), key)
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
      delete_child(key)
    end
  end
end
-- Remove it from the queue that its hash names, or from all queues if the original may have moved it on.
local _, name = state_in(KEYS[1])
local row = redis.call('HMGET', KEYS[1], PASSED, 'completed-queue')
if places[name or ''] and (queue.lasting or row[1] == row[2]) then
  remove_job(places[name], id, KEYS[1])
else
  for _, place in pairs(places) do
    if not place.named then
      remove_job(place, id, KEYS[1])
    end
  end
end
remove_from_lists()
-- Until a job has ended, the counters of its lookup lists include it.
local listed = redis.call('HGET', KEYS[1], LISTS)
local counted = listed and redis.call('PTTL', KEYS[1]) == -1
for _, list in ipairs(listed and texts_in(listed) or lists_of(KEYS[1])) do
  redis.pcall('LREM', list, 0, id) -- the key may have another type
  if counted and redis.call('DECR', counter_of(list)) <= 0 then
    redis.call('DEL', counter_of(list))
    redis.call('PEXPIRE', list, queue.key_life)
  end
end
redis.call('DEL', KEYS[1])
return 1
