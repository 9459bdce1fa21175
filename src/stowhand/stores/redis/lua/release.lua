-- with: line
-- Hand back, as if never claimed: to the front, in the order given. ARGV: line, then id and token of each.
for place = #ARGV - 1, 2, -2 do
  local id, token = ARGV[place], ARGV[place + 1]
  if is_ours(redis.call('GET', line.locks .. id), token) then
    local row, hidden = fields_of(id, RESETS, 'priority')
    local base = not hidden and leave(id, row and row[2], 0)
    if base or not row and not hidden then
      redis.call('DEL', line.locks .. id)
    end
    if base and row then
      give_back(id, base, count(row[1]))
    end
  end
end
return 1
