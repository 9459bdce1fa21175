-- with: queue life ending
-- Let this token claim nothing more, and hand back what it holds. ARGV: queue, token.
redis.call('SET', (queue.leases or queue.dead) .. ARGV[2], 'dead', 'EX', 600)
for _, base in ipairs(queue.bases) do
  local ids = redis.call('LRANGE', base .. ':processing', 0, -1)
  local locks = locks_of(ids)
  for place = #ids, 1, -1 do
    if is_ours(locks[place], ARGV[2]) then
      local row, hidden = fields_of(ids[place], RESETS)
      if not hidden then
        local stood = redis.call('LREM', base .. ':processing', 0, ids[place])
        redis.call('DEL', queue.locks .. ids[place])
        if row and stood > 0 then
          give_back(ids[place], base, count(row[1]))
        end
      end
    end
  end
end
return 1
