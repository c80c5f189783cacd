-- needs: base, files
-- ARGV: an object of id, lease_ms, owner ('' for nobody), most_bytes (that it may have), max_files and max_files_bytes of
--       an owner
-- From now on the object is removed unless its file is created in time. Of an owner, its place is reserved until then.
-- Returns 'ok', 'removing' while an earlier object of this id is still being removed, or as files_full says.
local args = cjson.decode(ARGV[1])
local id, owner = args.id, args.owner
if redis.call('ZSCORE', P .. 'file_garbage', id) then return { 'removing' } end
if redis.call('EXISTS', P .. 'file:' .. id) == 1 then return { 'ok' } end
if owner ~= '' and redis.call('HEXISTS', P .. 'file_reserved', id) == 0 then
  local bytes = args.most_bytes
  local full = files_full(owner, 1, bytes, args.max_files, args.max_files_bytes)
  if full then return full end
  redis.call('HSET', P .. 'file_reserved', id, int(bytes) .. ' ' .. owner)
  count_files(owner, 1, bytes)
end
redis.call('ZADD', P .. 'file_begun', int(NOW + args.lease_ms), id)
return { 'ok' }
