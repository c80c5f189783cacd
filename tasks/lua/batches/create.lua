-- needs: base, files, idempotency, quotas
-- ARGV: id, expires at ms, or seconds from now as '+N', idempotency key or '', body hash, idempotency ttl ms,
--       input file id, owner, how many files an owner may have and their bytes,
--       how many bytes an owner's records may take, then names and values of further fields.
-- Returns 'created' | 'existing' with the record, 'conflict' with the id of the other batch, 'no_file' where that
-- file is gone, or what is full: 'batches', 'tokens' or 'storage' with its limit and ms until there is more, 0 for
-- unknown, or as files_full says.
local id = ARGV[1]
local earlier = idempotent('batch', ARGV[3], ARGV[4])
if earlier then return earlier end
local key = P .. 'batch:' .. id
if redis.call('EXISTS', key) == 1 then return { 'existing', redis.call('HGETALL', key) } end

if redis.call('EXISTS', P .. 'file:' .. ARGV[6]) == 0 then return { 'no_file', ARGV[6] } end
local owner = ARGV[7]
local spent, ends = is_spent(owner)
if spent then
  return { 'tokens', { redis.call('HGET', P .. 'key:' .. owner, 'tokens_per_day'), int(ends - NOW) } }
end
local most = keyed(owner) and tonumber(redis.call('HGET', P .. 'key:' .. owner, 'max_batches') or '')
if most and tonumber(redis.call('HGET', P .. 'live_batches', owner) or '0') >= most then
  return { 'batches', { int(most), 0 } }
end

-- Its lines are copied as they are checked, and stay until it has ended.
local copied = tonumber(redis.call('HGET', P .. 'file:' .. ARGV[6], 'bytes') or '0')
local bytes = BATCH_BYTES + (ARGV[3] ~= '' and NOTE_BYTES + 2 * #ARGV[3] or 0)
for i = 11, #ARGV do bytes = bytes + #ARGV[i] end
local full = files_full(owner, 0, copied, ARGV[8], ARGV[9]) or storage_full(owner, bytes, ARGV[10])
if full then return full end
count_bytes(owner, bytes)
count_files(owner, 0, copied)

local expires = ARGV[2]
if expires:sub(1, 1) == '+' then expires = int(NOW + tonumber(expires:sub(2)) * 1000) end
local seq = redis.call('INCR', P .. 'seq')
redis.call('HSET', key, 'id', id, 'seq', seq, 'status', 'validating', 'created_at', int(NOW),
  'expires_at', expires, 'input_file_id', ARGV[6], 'total', 0, 'completed', 0, 'failed', 0, 'chunks', 0,
  'chunk', 0, 'place', 0, 'parts', 0, 'validated', 0, 'ending', '', 'owner', owner,
  'copied', int(copied), 'stored', int(bytes), unpack(ARGV, 11))
redis.call('ZADD', P .. 'batches', seq, id)
if keyed(owner) then
  redis.call('ZADD', P .. 'owner:' .. owner .. ':batches', seq, id)
  redis.call('HSET', key, 'seat', 1)
  redis.call('HINCRBY', P .. 'live_batches', owner, 1)
end
redis.call('ZADD', P .. 'batches:active', seq, id)
redis.call('SADD', P .. 'file_uses:' .. ARGV[6], id)
note_key('batch', ARGV[3], ARGV[4], id, ARGV[5])
wake()
return { 'created', redis.call('HGETALL', key) }
