-- needs: base, files
-- ARGV: id, lease ms, owner or '', bytes that it may have at most, how many files an owner may have and their bytes.
-- From now on the object is removed unless its file is created in time. Of an owner, its place is reserved until then.
-- Returns 'ok', 'removing' while an earlier object of this id is still being removed, or as files_full says.
local id, owner = ARGV[1], ARGV[3]
if redis.call('ZSCORE', P .. 'file_garbage', id) then return { 'removing' } end
if redis.call('EXISTS', P .. 'file:' .. id) == 1 then return { 'ok' } end
if owner ~= '' and redis.call('HEXISTS', P .. 'file_reserved', id) == 0 then
  local bytes = tonumber(ARGV[4])
  local full = files_full(owner, 1, bytes, ARGV[5], ARGV[6])
  if full then return full end
  redis.call('HSET', P .. 'file_reserved', id, int(bytes) .. ' ' .. owner)
  count_files(owner, 1, bytes)
end
redis.call('ZADD', P .. 'file_begun', int(NOW + tonumber(ARGV[2])), id)
return { 'ok' }
