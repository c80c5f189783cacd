-- needs: base
-- ARGV: name of a holder of leases, and the beats it had when it was first missed. Its leases have run out, unless it has
-- had another beat since. Returns how many there were.
--
-- holders               hash: name of the connections of a model worker -> how many beats it had
local name = ARGV[1]
if redis.call('HGET', P .. 'holders', name) ~= ARGV[2] then return 0 end
redis.call('HDEL', P .. 'holders', name)

local function expire(index, records)
  local ended = 0
  for _, id in ipairs(redis.call('ZRANGE', P .. index, 0, -1)) do
    if redis.call('HGET', P .. records .. id, 'holder') == name then
      redis.call('ZADD', P .. index, 0, id) -- so long ago that the reconciler spares it after no gap
      if index == 'leases' then redis.call('HSET', P .. records .. id, 'lease_until', 0) end
      ended = ended + 1
    end
  end
  return ended
end

return expire('leases', 'job:') + expire('window_leases', 'win:')
