-- ARGV: id, bytes, filename, purpose, expires after ms or '',
--       idempotency key or '', body hash, idempotency ttl ms
-- Returns 'created' | 'existing' with the record, 'conflict' with the id of the other file, or 'lost'
-- when the object has been given up.
local id, purpose, idem = ARGV[1], ARGV[4], ARGV[6]
local key = P .. 'file:' .. id

-- A client that lost the reply of its first call asks again with the same id.
if redis.call('EXISTS', key) == 1 then return { 'existing', redis.call('HGETALL', key) } end

if idem ~= '' then
  local held = redis.call('HMGET', P .. 'file_idem:' .. idem, 'id', 'hash')
  if held[1] and redis.call('EXISTS', P .. 'file:' .. held[1]) == 1 then
    if held[2] ~= ARGV[7] then return { 'conflict', held[1] } end
    return { 'existing', redis.call('HGETALL', P .. 'file:' .. held[1]) }
  end
end

-- Past its time it may be on the list of what is removed at any moment, though it still stands here.
local until_ms = tonumber(redis.call('ZSCORE', P .. 'file_begun', id) or '0')
if until_ms <= NOW then return { 'lost' } end
redis.call('ZREM', P .. 'file_begun', id)

if idem ~= '' then
  redis.call('HSET', P .. 'file_idem:' .. idem, 'id', id, 'hash', ARGV[7])
  redis.call('PEXPIRE', P .. 'file_idem:' .. idem, ARGV[8])
end
local seq = redis.call('INCR', P .. 'file_seq')
local expires_at = ''
if ARGV[5] ~= '' then
  expires_at = int(NOW + tonumber(ARGV[5]))
  redis.call('ZADD', P .. 'file_expiry', expires_at, id)
end
redis.call('HSET', key, 'id', id, 'bytes', ARGV[2], 'filename', ARGV[3], 'purpose', purpose,
  'created_at', int(NOW), 'expires_at', expires_at)
redis.call('ZADD', P .. 'files', seq, id)
redis.call('ZADD', P .. 'files:' .. purpose, seq, id)
return { 'created', redis.call('HGETALL', key) }
