-- ARGV: id, priority, model, request, metadata, deadline ms or '', preview,
--       idempotency key or '', body hash, idempotency ttl ms, '1' for somebody listens or '',
--       how long the record is kept when that is not the usual time, ms or '', owner, trace context or ''
-- Returns 'created' | 'held' | 'existing' with the record, or 'conflict' with the id of the other job.
-- The message of a held job is sent when its owner's share allows it, not by the caller.
local id = ARGV[1]
local earlier = idempotent('job', ARGV[8], ARGV[9], id, ARGV[10])
if earlier then return earlier end

-- A client that lost the reply of its first call asks again with the same id.
if redis.call('EXISTS', P .. 'job:' .. id) == 1 then
  return { 'existing', redis.call('HGETALL', P .. 'job:' .. id) }
end

local priority, owner = ARGV[2], ARGV[13]
local seq = add_job(id, priority, owner, ARGV[4], ARGV[5], ARGV[6], ARGV[7], 'model', ARGV[3])
if ARGV[11] ~= '' then redis.call('HSET', P .. 'job:' .. id, 'watched', ARGV[11]) end
if ARGV[14] ~= '' then redis.call('HSET', P .. 'job:' .. id, 'traceparent', ARGV[14]) end
if ARGV[12] ~= '' then redis.call('HSET', P .. 'job:' .. id, 'keep_ms', ARGV[12]) end
local answer = 'created'
local room = priority == 'bulk' and redis.call('GET', P .. 'bulk_room')
if room and (redis.call('HLEN', P .. 'held') > 0 or outstanding() >= tonumber(room)) then
  redis.call('ZADD', P .. 'held:' .. owner, seq, id)
  redis.call('HINCRBY', P .. 'held', owner, 1)
  wake()
  answer = 'held'
else
  redis.call('ZADD', P .. 'pending:' .. priority, int(NOW), id)
  if priority == 'bulk' then count_in(id, owner) end
end
return { answer, redis.call('HGETALL', P .. 'job:' .. id) }
