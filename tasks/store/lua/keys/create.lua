-- needs: base
-- ARGV: id, SHA-256 of the key, then names and values of its fields. Safe to repeat: the reply may have been lost.
local key = P .. 'key:' .. ARGV[1]
if redis.call('EXISTS', key) == 0 then
  redis.call('HSET', key, 'id', ARGV[1], 'created_at', int(NOW), 'digest', ARGV[2], unpack(ARGV, 3))
  redis.call('HSET', P .. 'keys', ARGV[2], ARGV[1])
  redis.call('RPUSH', P .. 'key_ids', ARGV[1])
end
return redis.call('HGETALL', key)
