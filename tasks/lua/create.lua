-- ARGV: id, priority, model, request, metadata, deadline ms or '', preview,
--       idempotency key or '', body hash, idempotency ttl ms
-- Returns 'created' | 'existing' with the record, or 'conflict' with the id of the other job.
local id, idem = ARGV[1], ARGV[8]

if idem ~= '' then
  local held = redis.call('HMGET', P .. 'idem:' .. idem, 'id', 'hash')
  if held[1] and redis.call('EXISTS', P .. 'job:' .. held[1]) == 1 then
    if held[2] ~= ARGV[9] then return { 'conflict', held[1] } end
    return { 'existing', redis.call('HGETALL', P .. 'job:' .. held[1]) }
  end
  redis.call('HSET', P .. 'idem:' .. idem, 'id', id, 'hash', ARGV[9])
  redis.call('PEXPIRE', P .. 'idem:' .. idem, ARGV[10])
end

-- A client that lost the reply of its first call asks again with the same id.
if redis.call('EXISTS', P .. 'job:' .. id) == 1 then
  return { 'existing', redis.call('HGETALL', P .. 'job:' .. id) }
end

local seq = redis.call('INCR', P .. 'seq')
redis.call('HSET', P .. 'job:' .. id, 'id', id, 'status', 'queued', 'seq', seq, 'priority', ARGV[2],
  'model', ARGV[3], 'request', ARGV[4], 'metadata', ARGV[5], 'deadline', ARGV[6], 'preview', ARGV[7],
  'created_at', int(NOW), 'enqueued_at', int(NOW), 'attempts', 0, 'fence', 0)
redis.call('ZADD', P .. 'jobs', seq, id)
redis.call('ZADD', P .. 'status:queued', seq, id)
redis.call('ZADD', P .. 'pending:' .. ARGV[2], int(NOW), id)
if ARGV[6] ~= '' then redis.call('ZADD', P .. 'deadlines', ARGV[6], id) end
for name, value in pairs(cjson.decode(ARGV[5])) do
  redis.call('ZADD', meta_key(name, value), seq, id)
end
return { 'created', redis.call('HGETALL', P .. 'job:' .. id) }
