-- ARGV: id, lease ms. From now on the object is removed unless its file is created in time.
-- Returns 0 while an earlier object of this id is still being removed.
if redis.call('ZSCORE', P .. 'file_garbage', ARGV[1]) then return 0 end
if redis.call('EXISTS', P .. 'file:' .. ARGV[1]) == 0 then
  redis.call('ZADD', P .. 'file_begun', int(NOW + tonumber(ARGV[2])), ARGV[1])
end
return 1
