-- needs: base
-- ARGV: id, lease ms. Returns 0 if the object has been given up.
if redis.call('EXISTS', P .. 'file:' .. ARGV[1]) == 1 then return 1 end
local until_ms = tonumber(redis.call('ZSCORE', P .. 'file_begun', ARGV[1]) or '0')
if until_ms <= NOW then return 0 end
redis.call('ZADD', P .. 'file_begun', int(NOW + tonumber(ARGV[2])), ARGV[1])
return 1
