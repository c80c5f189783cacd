-- needs: base, files, idempotency, quotas
-- ARGV: an object, then names and values of further fields.
--       id, expires_at_ms, or expires_in_ms from now on, idempotency_key ('' for none), body_hash, idempotency_ttl_ms,
--       input_file_id, owner, max_files and max_files_bytes of an owner, max_stored_bytes of its records
-- Returns 'created' | 'existing' with the record, 'conflict' with the id of the other batch, 'no_file' where that
-- file is gone, or what is full: 'batches', 'tokens' or 'storage' with its limit and ms until there is more, 0 for
-- unknown, or as files_full says.
local args = cjson.decode(ARGV[1])
local id, input, idempotency_key = args.id, args.input_file_id, args.idempotency_key
local earlier = idempotent('batch', idempotency_key, args.body_hash)
if earlier then return earlier end
local key = P .. 'batch:' .. id
if redis.call('EXISTS', key) == 1 then return { 'existing', redis.call('HGETALL', key) } end

if redis.call('EXISTS', P .. 'file:' .. input) == 0 then return { 'no_file', input } end
local owner = args.owner
local tokens, ends = tokens_left(owner)
if tokens and tokens <= 0 then
  return { 'tokens', { redis.call('HGET', P .. 'key:' .. owner, 'tokens_per_day'), int(ends - NOW) } }
end
local most = keyed(owner) and tonumber(redis.call('HGET', P .. 'key:' .. owner, 'max_batches') or '')
if most and tonumber(redis.call('HGET', P .. 'live_batches', owner) or '0') >= most then
  return { 'batches', { int(most), 0 } }
end

-- Its lines are copied as they are checked, and stay until it has ended.
local copied = tonumber(redis.call('HGET', P .. 'file:' .. input, 'bytes') or '0')
local filename = redis.call('HGET', P .. 'file:' .. input, 'filename') or '' -- the file may be gone before the record
local bytes = BATCH_BYTES + #filename + (idempotency_key ~= '' and NOTE_BYTES + 2 * #idempotency_key or 0)
for i = 2, #ARGV do bytes = bytes + #ARGV[i] end
local full = files_full(owner, 0, copied, args.max_files, args.max_files_bytes)
  or storage_full(owner, bytes, args.max_stored_bytes)
if full then return full end
count_bytes(owner, bytes)
count_files(owner, 0, copied)

local seq = redis.call('INCR', P .. 'seq')
redis.call('HSET', key, 'id', id, 'seq', seq, 'status', 'validating', 'created_at', int(NOW),
  'expires_at', int(args.expires_at_ms or NOW + args.expires_in_ms), 'input_file_id', input, 'total', 0, 'completed', 0, 'failed', 0, 'chunks', 0,
  'chunk', 0, 'place', 0, 'parts', 0, 'validated', 0, 'ending', '', 'owner', owner,
  'input_filename', filename, 'copied', int(copied), 'stored', int(bytes), unpack(ARGV, 2))
redis.call('ZADD', P .. 'batches', seq, id)
if keyed(owner) then
  redis.call('ZADD', P .. 'owner:' .. owner .. ':batches', seq, id)
  redis.call('HSET', key, 'seat', 1)
  redis.call('HINCRBY', P .. 'live_batches', owner, 1)
end
redis.call('ZADD', P .. 'batches:active', seq, id)
redis.call('SADD', P .. 'file_uses:' .. input, id)
note_key('batch', idempotency_key, args.body_hash, id, int(args.idempotency_ttl_ms))
wake()
return { 'created', redis.call('HGETALL', key) }
