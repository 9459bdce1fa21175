-- with: line
-- Renew locks. ARGV: line, milliseconds, then id and token of each. Gives what became of each: K kept, L lost.
-- A job whose hash is gone is lost: nobody waits for its result.
local ids = {}
for place = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[place]
end
local known = {}
for index, lock in ipairs(locks_of(ids)) do
  known[index] = 'L'
  if is_ours(lock, ARGV[2 + 2 * index]) and redis.call('EXISTS', line.hashes .. ids[index]) == 1 then
    redis.call('PEXPIRE', line.locks .. ids[index], ARGV[2])
    known[index] = 'K'
  end
end
return table.concat(known)
