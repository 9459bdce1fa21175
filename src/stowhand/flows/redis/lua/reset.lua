-- with: queue life ending
-- Reset the jobs of a lost worker. ARGV: queue, then 'lease', id and token; or 'worker' and its name.
-- Returns {id, state, …} in the order of the claims.
local resets = {}

local function reset_job(base, id)
  redis.call('DEL', queue.locks .. id)
  local state = reset(id, base)
  if state then
    table.insert(resets, 1, state)
    table.insert(resets, 1, id)
  end
end

if ARGV[2] == 'lease' then
  local id = ARGV[3]
  if is_ours(redis.call('GET', queue.locks .. id), ARGV[4]) then
    local row = fields_of(id, 'priority')
    local base = remove_from_processing(id, row and row[1], 0)
    if base then
      reset_job(base, id)
    end
  end
else
  for rank = #queue.bases, 1, -1 do
    local base = queue.bases[rank]
    local ids = redis.call('LRANGE', base .. ':processing', 0, -1)
    local locks = locks_of(ids)
    for place = #ids, 1, -1 do
      if locks[place] and string.match(locks[place], '^(.-)%+?:[^:]*$') == ARGV[3] then
        if redis.call('LREM', base .. ':processing', 0, ids[place]) > 0 then
          reset_job(base, ids[place])
        end
      end
    end
  end
end
return resets
