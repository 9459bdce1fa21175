-- with: queue
-- Renew leases. ARGV: queue, milliseconds, those of the lock where it outlives its lease, else 0, then id and token of
-- each. Gives what became of each: K kept, C kept and asked to cancel, L lost. A job whose hash is gone is lost: its
-- result is not needed.
local lease, life = ARGV[2], ARGV[3]
local ids = {}
for place = 4, #ARGV, 2 do
  ids[#ids + 1] = ARGV[place]
end
local known, renewed = {}, {}
for index, lock in ipairs(locks_of(ids)) do
  known[index] = 'L'
  local token = ARGV[3 + 2 * index]
  local row = is_ours(lock, token) and redis.pcall('HMGET', queue.hashes .. ids[index], CANCEL, STATE)
  if row and (row.err or row[1] or row[2]) then
    redis.call('PEXPIRE', queue.locks .. ids[index], life ~= '0' and life or lease)
    known[index] = row[1] and 'C' or 'K'
    if life ~= '0' and not renewed[token] then
      redis.call('SET', queue.leases .. token, 'alive', 'PX', lease)
      renewed[token] = true
    end
  end
end
return table.concat(known)
