-- with: queue
-- Renew leases. ARGV: queue; milliseconds of the lease; milliseconds of the lock if it outlives its lease, else 0; then
-- id and token of each lease. Returns a mark for each: K kept, C kept with a cancellation request, L lost. A job
-- without a hash is lost, since its result is not needed.
local lease, lock_life = ARGV[2], ARGV[3]
local ids = {}
for place = 4, #ARGV, 2 do
  ids[#ids + 1] = ARGV[place]
end
local results, renewed = {}, {}
for index, lock in ipairs(locks_of(ids)) do
  results[index] = 'L'
  local token = ARGV[3 + 2 * index]
  local row = is_ours(lock, token) and redis.pcall('HMGET', queue.hashes .. ids[index], CANCEL, STATE)
  if row and (row.err or row[1] or row[2]) then
    redis.call('PEXPIRE', queue.locks .. ids[index], lock_life ~= '0' and lock_life or lease)
    results[index] = row[1] and 'C' or 'K'
    if lock_life ~= '0' and not renewed[token] then
      redis.call('SET', queue.leases .. token, 'alive', 'PX', lease)
      renewed[token] = true
    end
  end
end
return table.concat(results)
