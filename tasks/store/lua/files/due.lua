-- needs: base, files
-- ARGV: limit, again ms. Drops the files that have expired and gives up objects whose writer fell silent.
-- Returns the ids of objects to remove now; they come again after `again` unless they are said to be gone.
local limit, again = tonumber(ARGV[1]), NOW + tonumber(ARGV[2])

local function due(index)
  return redis.call('ZRANGEBYSCORE', P .. index, '-inf', int(NOW), 'LIMIT', 0, limit)
end

for _, id in ipairs(due('file_expiry')) do
  if redis.call('SCARD', P .. 'file_uses:' .. id) > 0 then
    redis.call('ZADD', P .. 'file_expiry', int(again), id)
  else
    drop_file(id, NOW)
  end
end
for _, id in ipairs(due('file_begun')) do
  redis.call('ZREM', P .. 'file_begun', id)
  redis.call('ZADD', P .. 'file_garbage', int(NOW), id)
  release_file(id)
end

local ids = due('file_garbage')
for _, id in ipairs(ids) do redis.call('ZADD', P .. 'file_garbage', int(again), id) end
return ids
