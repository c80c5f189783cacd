-- needs: base
-- ARGV: id. The record stays: it tells whose the things are that it made, and that keys are used here.
-- Returns 1, or 0 for an unknown id.
local key = P .. 'key:' .. ARGV[1]
local digest = redis.call('HGET', key, 'digest')
if not digest then return 0 end
redis.call('HDEL', P .. 'keys', digest)
redis.call('HSETNX', key, 'revoked_at', int(NOW))
return 1
