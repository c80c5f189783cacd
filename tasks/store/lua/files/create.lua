-- needs: base, files, idempotency
-- ARGV: an object of id, bytes, filename, purpose, expires_in_ms (absent for never), idempotency_key ('' for none),
--       body_hash, idempotency_ttl_ms, owner
-- Returns 'created' | 'existing' with the record, 'conflict' with the id of the other file, or 'lost'
-- when the object has been given up.
local args = cjson.decode(ARGV[1])
local id, purpose, owner = args.id, args.purpose, args.owner
local key = P .. 'file:' .. id

-- A client that lost the reply of its first call asks again with the same id.
if redis.call('EXISTS', key) == 1 then return { 'existing', redis.call('HGETALL', key) } end

local earlier = idempotent('file', args.idempotency_key, args.body_hash)
if earlier then return earlier end

-- Past its time it may be on the list of what is removed at any moment, though it still stands here.
local until_ms = tonumber(redis.call('ZSCORE', P .. 'file_begun', id) or '0')
if until_ms <= NOW then return { 'lost' } end
redis.call('ZREM', P .. 'file_begun', id)
release_file(id)

local seq = redis.call('INCR', P .. 'file_seq')
local expires_at = ''
if args.expires_in_ms then
  expires_at = int(NOW + args.expires_in_ms)
  redis.call('ZADD', P .. 'file_expiry', expires_at, id)
end
redis.call('HSET', key, 'id', id, 'bytes', int(args.bytes), 'filename', args.filename, 'purpose', purpose,
  'created_at', int(NOW), 'expires_at', expires_at, 'owner', owner, 'counted', 1)
count_files(owner, 1, args.bytes)
note_key('file', args.idempotency_key, args.body_hash, id, int(args.idempotency_ttl_ms))
redis.call('ZADD', P .. 'files', seq, id)
redis.call('ZADD', P .. 'files:' .. purpose, seq, id)
if keyed(owner) then
  redis.call('ZADD', P .. 'owner:' .. owner .. ':files', seq, id)
  redis.call('ZADD', P .. 'owner:' .. owner .. ':files:' .. purpose, seq, id)
end
return { 'created', redis.call('HGETALL', key) }
