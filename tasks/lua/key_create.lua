-- ARGV: id, SHA-256 of the key, then names and values of its fields.
redis.call('HSET', P .. 'key:' .. ARGV[1], 'id', ARGV[1], 'created_at', int(NOW), unpack(ARGV, 3))
redis.call('HSET', P .. 'key:' .. ARGV[1], 'digest', ARGV[2])
redis.call('HSET', P .. 'keys', ARGV[2], ARGV[1])
redis.call('RPUSH', P .. 'key_ids', ARGV[1])
return redis.call('HGETALL', P .. 'key:' .. ARGV[1])
