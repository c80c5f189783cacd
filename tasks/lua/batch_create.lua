-- ARGV: id, expires at ms, or seconds from now as '+N', idempotency key or '', body hash, idempotency ttl ms,
--       input file id, owner, then names and values of further fields.
-- Returns 'created' | 'existing' with the record, 'conflict' with the id of the other batch, or what is full, 'batches'
-- or 'tokens', with its limit and ms until there is more, 0 for unknown.
local id = ARGV[1]
local earlier = idempotent('batch', ARGV[3], ARGV[4], id, ARGV[5])
if earlier then return earlier end
local key = P .. 'batch:' .. id
if redis.call('EXISTS', key) == 1 then return { 'existing', redis.call('HGETALL', key) } end

local owner = ARGV[7]
local spent, ends = is_spent(owner)
if spent then
  return { 'tokens', { redis.call('HGET', P .. 'key:' .. owner, 'tokens_per_day'), int(ends - NOW) } }
end
local most = keyed(owner) and tonumber(redis.call('HGET', P .. 'key:' .. owner, 'max_batches') or '')
if most and tonumber(redis.call('HGET', P .. 'live_batches', owner) or '0') >= most then
  return { 'batches', { int(most), 0 } }
end

local expires = ARGV[2]
if expires:sub(1, 1) == '+' then expires = int(NOW + tonumber(expires:sub(2)) * 1000) end
local seq = redis.call('INCR', P .. 'seq')
redis.call('HSET', key, 'id', id, 'seq', seq, 'status', 'validating', 'created_at', int(NOW),
  'expires_at', expires, 'input_file_id', ARGV[6], 'total', 0, 'completed', 0, 'failed', 0, 'chunks', 0,
  'chunk', 0, 'place', 0, 'parts', 0, 'validated', 0, 'ending', '', 'owner', owner,
  unpack(ARGV, 8))
redis.call('ZADD', P .. 'batches', seq, id)
if keyed(owner) then
  redis.call('ZADD', P .. 'owner:' .. owner .. ':batches', seq, id)
  redis.call('HSET', key, 'seat', 1)
  redis.call('HINCRBY', P .. 'live_batches', owner, 1)
end
redis.call('ZADD', P .. 'batches:active', seq, id)
redis.call('SADD', P .. 'file_uses:' .. ARGV[6], id)
wake()
return { 'created', redis.call('HGETALL', key) }
