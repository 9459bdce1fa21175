-- with: queue life ending
-- Abandon a claim token: it can claim no more jobs, and its jobs return to the queue. ARGV: queue, token.
redis.call('SET', (queue.leases or queue.dead) .. ARGV[2], 'dead', 'EX', 600)
for _, base in ipairs(queue.bases) do
  local ids = redis.call('LRANGE', base .. ':processing', 0, -1)
  local locks = locks_of(ids)
  for place = #ids, 1, -1 do
    if is_ours(locks[place], ARGV[2]) then
      local row, read_error = fields_of(ids[place], RESETS)
      if not read_error then
        local stood = redis.call('LREM', base .. ':processing', 0, ids[place])
        redis.call('DEL', queue.locks .. ids[place])
        if row and stood > 0 then
          return_job(ids[place], base, count(row[1]))
        end
      end
    end
  end
end
return 1
