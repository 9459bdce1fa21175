-- How long jobs are kept. Where every worker is ours (``queue.lasting``) no key of a job has a time to live before it has
-- ended: however long it waits, it is executed. Beside the original, whose keys have one from the beginning, the sweep
-- renews what has not ended (see renew).

local AT_ONCE = 500 -- children whose life ends with their parent's in one step; the sweep ends that of more

-- The names of children in a parent's hash; none where it is no list.
local function children_of(hash, name)
  local listed = redis.pcall('HGET', hash, 'children:' .. name .. ':jobs')
  local sound, keys = pcall(cjson.decode, type(listed) == 'string' and listed or '')
  return sound and type(keys) == 'table' and keys or {}
end

-- Who is to be found in a lookup list, and has not ended, is counted: the list ends with the last of them.
local function counter_of(list)
  return queue.prefix .. 'open:' .. string.sub(list, #queue.prefix + #'job:' + 1)
end

-- A hash is the user's own, and may name any key as a child's.
local function is_child(key)
  for _, name in ipairs(queue.parents) do
    local begin = queue.prefix .. 'job:' .. name .. ':'
    if string.sub(key, 1, #begin) == begin then
      return true
    end
  end
  return false
end

local function texts_in(value)
  local sound, found = pcall(cjson.decode, value or '')
  return sound and type(found) == 'table' and found or {}
end

local function release_lookups(lists)
  for _, list in ipairs(texts_in(lists)) do
    if redis.call('DECR', counter_of(list)) <= 0 then
      redis.call('DEL', counter_of(list))
      redis.call('PEXPIRE', list, queue.key_life)
    end
  end
end

local function release_children(hash, queues)
  for _, name in ipairs(texts_in(queues)) do
    local keys = children_of(hash, name)
    if #keys > AT_ONCE then
      redis.call('RPUSH', queue.root .. ':outlived', cjson.encode({ hash, name, 0 }))
    else
      for _, key in ipairs(keys) do
        redis.call('PEXPIRE', key, queue.key_life)
      end
    end
  end
end

-- It has ended: from now on it is kept for the flow's ``key_life``. A child is kept as long as its parent, unless that
-- is gone. ``lists``, ``queues``: the fields LISTS and QUEUES of its hash. ``fields``: the last ones, {name, value, …}, not
-- so many that they would not go into one call.
local function ended(hash, lists, queues, fields)
  fields = fields or {}
  if queue.lasting then
    fields[#fields + 1], fields[#fields + 2] = 'endedAtTimestamp', string.format('%d', now_ms())
  end
  if #fields > 0 then
    redis.call('HSET', hash, unpack(fields))
  end
  if not queue.lasting then
    return
  end
  redis.call('PEXPIRE', hash, queue.key_life)
  if lists then
    release_lookups(lists)
  end
  if queues then
    release_children(hash, queues)
  end
end

-- It has children of this queue. ``queues``: the field QUEUES of its hash.
local function has_children(hash, queues)
  local known = texts_in(queues)
  for _, name in ipairs(known) do
    if name == queue.name then
      return
    end
  end
  if queue.lasting then
    known[#known + 1] = queue.name
    redis.call('HSET', hash, QUEUES, cjson.encode(known))
  end
end

-- A page of the children of a parent that had many.
local function release_more(root)
  local text = redis.call('LPOP', root .. ':outlived')
  if not text then
    return
  end
  local hash, name, place = unpack(cjson.decode(text))
  local keys = children_of(hash, name)
  for at = place + 1, math.min(place + 2 * CHUNK, #keys) do
    redis.call('PEXPIRE', keys[at], queue.key_life)
  end
  if place + 2 * CHUNK < #keys then
    redis.call('LPUSH', root .. ':outlived', cjson.encode({ hash, name, place + 2 * CHUNK }))
  end
end

-- Under what a job of the original is found: texts as they are, numbers as JSON writes them.
local function lookup_lists(values)
  local lists = {}
  for place, attribute in ipairs(queue.lookups) do
    local text = values[place]
    local sound, value = pcall(cjson.decode, text or '')
    local each = sound and (type(value) == 'table' and value or { value }) or {}
    for _, one in ipairs(each) do
      if type(one) == 'string' and one ~= '' then
        lists[#lists + 1] = queue.found .. attribute .. ':' .. one
      end
    end
    if sound and type(value) ~= 'string' then
      -- The digits as they stand there: a number of ours may be longer than those of Lua. Texts are no numbers.
      for digits in string.gmatch((string.gsub(text, '"[^"]*"', '')), '-?%d[%d%.eE+-]*') do
        lists[#lists + 1] = queue.found .. attribute .. ':' .. digits
      end
    end
  end
  return lists
end

-- The list of the jobs that have the key of this one.
local function holders_of(hash)
  local text = redis.pcall('HGET', hash, 'flow:key')
  local sound, key = pcall(cjson.decode, type(text) == 'string' and text or '')
  return sound and type(key) == 'string' and queue.found .. ':' .. key or nil
end

-- Where a job can be found that does not name these lists itself (LISTS).
local function lists_of(hash)
  local row = #queue.lookups > 0 and redis.pcall('HMGET', hash, unpack(queue.lookups)) or {}
  local lists = row.err and {} or lookup_lists(row)
  lists[#lists + 1] = holders_of(hash)
  return lists
end

-- Twice in its life at most.
local function renew_key(key)
  local left = redis.pcall('PTTL', key)
  if type(left) == 'number' and left >= 0 and left <= queue.key_life / 2 then
    redis.call('PEXPIRE', key, queue.key_life)
  end
end

local function renew_job(id)
  local hash = queue.hashes .. id
  local left = redis.pcall('PTTL', hash)
  if type(left) ~= 'number' or left < 0 or left > queue.key_life / 2 then
    return 0
  end
  for _, list in ipairs(lists_of(hash)) do
    renew_key(list)
  end
  local children = 0
  for _, name in ipairs(queue.parents) do
    for _, key in ipairs(children_of(hash, name)) do
      renew_key(key)
      children = children + 1
    end
  end
  redis.call('PEXPIRE', hash, queue.key_life)
  return 1 + children
end

local RENEWED = 2000 -- jobs looked at in one sweep
local KINDS = { 'waiting', 'processing', 'suspects', 'delayed', 'parked' }

-- One page after the other, from the tail of each list: what is pushed there meanwhile shifts nothing out of sight. Each
-- eighth of a job's life a round begins, so what one has missed (it was taken out beside) the next one meets in time.
local function renew(root, bases)
  local state = root .. ':renewal'
  local base, kind, place = unpack(redis.call('HMGET', state, 'base', 'kind', 'place'))
  if not base then
    if not redis.call('SET', root .. ':renewed', '1', 'PX', math.max(math.floor(queue.key_life / 8), 1), 'NX') then
      return
    end
    base, kind, place = 1, 1, 0
  end
  base, kind, place = tonumber(base), tonumber(kind), tonumber(place)
  local budget = RENEWED
  while budget > 0 and bases[base] do
    local name = KINDS[kind] == 'suspects' and root .. ':suspects' or bases[base] .. ':' .. KINDS[kind]
    local read = kind < 4 and 'LRANGE' or 'ZRANGE'
    local ids = redis.pcall(read, name, -place - CHUNK, -place - 1)
    ids = ids.err and {} or ids
    for _, id in ipairs(ids) do
      budget = budget - renew_job(id)
    end
    budget, place = budget - #ids, place + #ids
    if #ids < CHUNK then
      kind, place = kind + 1, 0
      if not KINDS[kind] then
        base, kind = base + 1, 1
      end
    end
  end
  if bases[base] then
    redis.call('HSET', state, 'base', base, 'kind', kind, 'place', place)
  else
    redis.call('DEL', state)
  end
end
