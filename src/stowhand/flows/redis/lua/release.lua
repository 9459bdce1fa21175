-- with: queue life ending
-- Return jobs to the front of the queue without using an attempt, in the order of their claims. ARGV: queue, then id,
-- token and claim time of each.
for place = #ARGV - 2, 2, -3 do
  local id, token, order = ARGV[place], ARGV[place + 1], tonumber(ARGV[place + 2])
  if is_ours(redis.call('GET', queue.locks .. id), token) then
    local row, read_error = fields_of(id, RESETS, 'priority')
    local base = not read_error and remove_from_processing(id, row and row[2], 0)
    if base or not row and not read_error then
      redis.call('DEL', queue.locks .. id)
    end
    if base and row then
      return_job(id, base, count(row[1]), order)
    end
  end
end
return 1
