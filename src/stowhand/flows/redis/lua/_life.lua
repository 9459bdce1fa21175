-- Lifetimes of jobs. If only Stowhand serves the flow (``queue.lasting``), the keys of a job have no time to live until
-- it has ended, so it is executed however long it waits. Keys of the original implementation have one from their
-- creation; then the sweep renews the keys of jobs that have not ended (see ``renew``).

-- Maximum number of children whose keys one call lets expire with their parent. The sweep handles parents with more.
local MAX_CHILDREN_AT_ONCE = 500

-- Returns the keys of the children in a parent's hash; none if the field is not a list.
local function children_of(hash, name)
  local listed = redis.pcall('HGET', hash, 'children:' .. name .. ':jobs')
  local ok, keys = pcall(cjson.decode, type(listed) == 'string' and listed or '')
  return ok and type(keys) == 'table' and keys or {}
end

-- Returns the key of a counter: the jobs in a lookup list that have not ended. The list expires after the last of them.
local function counter_of(list)
  return queue.prefix .. 'open:' .. string.sub(list, #queue.prefix + #'job:' + 1)
end

-- A user may write any value into a hash, so a key in a list of children may be any key.
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
  local ok, found = pcall(cjson.decode, value or '')
  return ok and type(found) == 'table' and found or {}
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
    if #keys > MAX_CHILDREN_AT_ONCE then
      redis.call('RPUSH', queue.root .. ':outlived', cjson.encode({ hash, name, 0 }))
    else
      for _, key in ipairs(keys) do
        redis.call('PEXPIRE', key, queue.key_life)
      end
    end
  end
end

-- Records that a job has ended: from now on it is kept for the flow's ``key_life``. A child is kept as long as its
-- parent. ``lists``, ``queues``: the fields LISTS and QUEUES of its hash. ``fields``: last fields to write, {name,
-- value, …}, few enough for one call.
local function record_end(hash, lists, queues, fields)
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

-- Records that the job has children of this queue. ``queues``: the field QUEUES of its hash.
local function record_children(hash, queues)
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

-- Lets a page of the children of an ended parent expire.
local function release_more(root)
  local text = redis.call('LPOP', root .. ':outlived')
  if not text then
    return
  end
  local hash, name, place = unpack(cjson.decode(text))
  local keys = children_of(hash, name)
  for at = place + 1, math.min(place + 2 * MAX_VALUES, #keys) do
    redis.call('PEXPIRE', keys[at], queue.key_life)
  end
  if place + 2 * MAX_VALUES < #keys then
    redis.call('LPUSH', root .. ':outlived', cjson.encode({ hash, name, place + 2 * MAX_VALUES }))
  end
end

-- Returns the lookup lists of a job of the original implementation. Texts are used unchanged, numbers as in JSON.
local function lookup_lists(values)
  local lists = {}
  for place, attribute in ipairs(queue.lookups) do
    local text = values[place]
    local ok, value = pcall(cjson.decode, text or '')
    local each = ok and (type(value) == 'table' and value or { value }) or {}
    for _, lookup_value in ipairs(each) do
      if type(lookup_value) == 'string' and lookup_value ~= '' then
        lists[#lists + 1] = queue.found .. attribute .. ':' .. lookup_value
      end
    end
    if ok and type(value) ~= 'string' then
      -- Use the digits of the text, since a number may have more digits than Lua keeps. Quoted texts are skipped.
      for digits in string.gmatch((string.gsub(text, '"[^"]*"', '')), '-?%d[%d%.eE+-]*') do
        lists[#lists + 1] = queue.found .. attribute .. ':' .. digits
      end
    end
  end
  return lists
end

-- Returns the list of the jobs that have the same key as this one.
local function holders_of(hash)
  local text = redis.pcall('HGET', hash, 'flow:key')
  local ok, key = pcall(cjson.decode, type(text) == 'string' and text or '')
  return ok and type(key) == 'string' and queue.found .. ':' .. key or nil
end

-- Returns the lookup lists of a job whose hash does not name them (LISTS).
local function lists_of(hash)
  local row = #queue.lookups > 0 and redis.pcall('HMGET', hash, unpack(queue.lookups)) or {}
  local lists = row.err and {} or lookup_lists(row)
  lists[#lists + 1] = holders_of(hash)
  return lists
end

-- Renews a key after half of its life, so at most twice in that time.
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

local MAX_RENEWED_JOBS = 2000 -- maximum number of jobs that one sweep checks
local LIST_KINDS = { 'waiting', 'processing', 'suspects', 'delayed', 'parked' }

-- Renews the keys of jobs that have not ended, page by page. It reads each list from its tail, so that pushes in the
-- meantime hide no job. A round begins eight times in the life of a job, so that the next round renews a job that this
-- one has missed because it was between two lists.
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
  local budget = MAX_RENEWED_JOBS
  while budget > 0 and bases[base] do
    local name = LIST_KINDS[kind] == 'suspects' and root .. ':suspects' or bases[base] .. ':' .. LIST_KINDS[kind]
    local read = kind < 4 and 'LRANGE' or 'ZRANGE'
    local ids = redis.pcall(read, name, -place - MAX_VALUES, -place - 1)
    ids = ids.err and {} or ids
    for _, id in ipairs(ids) do
      budget = budget - renew_job(id)
    end
    budget, place = budget - #ids, place + #ids
    if #ids < MAX_VALUES then
      kind, place = kind + 1, 0
      if not LIST_KINDS[kind] then
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
