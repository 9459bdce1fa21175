-- with: queue life ending
-- Hand back, as if never claimed: to the front, in the order of the claims and in that given. ARGV: queue, then id, token
-- and moment of the claim of each.
for place = #ARGV - 2, 2, -3 do
  local id, token, order = ARGV[place], ARGV[place + 1], tonumber(ARGV[place + 2])
  if is_ours(redis.call('GET', queue.locks .. id), token) then
    local row, hidden = fields_of(id, RESETS, 'priority')
    local base = not hidden and take_from_processing(id, row and row[2], 0)
    if base or not row and not hidden then
      redis.call('DEL', queue.locks .. id)
    end
    if base and row then
      give_back(id, base, count(row[1]), order)
    end
  end
end
return 1
