-- needs: base, files, idempotency
-- ARGV: id, bytes, filename, purpose, expires after ms or '',
--       idempotency key or '', body hash, idempotency ttl ms, owner
-- Returns 'created' | 'existing' with the record, 'conflict' with the id of the other file, or 'lost'
-- when the object has been given up.
local id, purpose = ARGV[1], ARGV[4]
local key = P .. 'file:' .. id

-- A client that lost the reply of its first call asks again with the same id.
if redis.call('EXISTS', key) == 1 then return { 'existing', redis.call('HGETALL', key) } end

local earlier = idempotent('file', ARGV[6], ARGV[7])
if earlier then return earlier end

-- Past its time it may be on the list of what is removed at any moment, though it still stands here.
local until_ms = tonumber(redis.call('ZSCORE', P .. 'file_begun', id) or '0')
if until_ms <= NOW then return { 'lost' } end
redis.call('ZREM', P .. 'file_begun', id)
release_file(id)

local seq = redis.call('INCR', P .. 'file_seq')
local expires_at = ''
if ARGV[5] ~= '' then
  expires_at = int(NOW + tonumber(ARGV[5]))
  redis.call('ZADD', P .. 'file_expiry', expires_at, id)
end
redis.call('HSET', key, 'id', id, 'bytes', ARGV[2], 'filename', ARGV[3], 'purpose', purpose,
  'created_at', int(NOW), 'expires_at', expires_at, 'owner', ARGV[9], 'counted', 1)
count_files(ARGV[9], 1, tonumber(ARGV[2]))
note_key('file', ARGV[6], ARGV[7], id, ARGV[8])
redis.call('ZADD', P .. 'files', seq, id)
redis.call('ZADD', P .. 'files:' .. purpose, seq, id)
if keyed(ARGV[9]) then
  redis.call('ZADD', P .. 'owner:' .. ARGV[9] .. ':files', seq, id)
  redis.call('ZADD', P .. 'owner:' .. ARGV[9] .. ':files:' .. purpose, seq, id)
end
return { 'created', redis.call('HGETALL', key) }
