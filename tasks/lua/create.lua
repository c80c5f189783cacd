-- ARGV: id, priority, model, request, metadata, deadline ms or '', preview,
--       idempotency key or '', body hash, idempotency ttl ms, '1' for somebody listens or '',
--       how long the record is kept when that is not the usual time, ms or '', owner, most tokens of the answer,
--       how many jobs may be queued in all, webhook as JSON of url, to and events, or '', trace context or ''
-- Returns 'created' | 'held' | 'existing' with the record, 'conflict' with the id of the other job, or what is
-- full with its limit and ms until it has room, 0 for unknown: 'queue' | 'jobs' | 'tokens'.
-- The message of a held job is sent when its owner's share allows it, not by the caller.
local id = ARGV[1]
local earlier = idempotent('job', ARGV[8], ARGV[9], id, ARGV[10])
if earlier then return earlier end

-- A client that lost the reply of its first call asks again with the same id.
if redis.call('EXISTS', P .. 'job:' .. id) == 1 then
  return { 'existing', redis.call('HGETALL', P .. 'job:' .. id) }
end

local priority, owner, tokens = ARGV[2], ARGV[13], tonumber(ARGV[14])
if redis.call('ZCARD', P .. 'status:queued') >= tonumber(ARGV[15]) then return { 'queue', { ARGV[15], 0 } } end
if keyed(owner) then
  local limits = redis.call('HMGET', P .. 'key:' .. owner, 'max_jobs', 'tokens_per_day')
  local most_jobs, most_tokens = tonumber(limits[1] or ''), tonumber(limits[2] or '')
  if most_jobs and tonumber(redis.call('HGET', P .. 'live', owner) or '0') >= most_jobs then
    return { 'jobs', { int(most_jobs), 0 } }
  end
  local spent, _, ends = spent_today(owner)
  if most_tokens and spent + tokens > most_tokens then
    return { 'tokens', { int(most_tokens), int(ends - NOW) } }
  end
end

local lane = lane_of(ARGV[3])
local seq = add_job(id, priority, owner, ARGV[4], ARGV[5], ARGV[6], ARGV[7], 'model', ARGV[3], 'lane', lane,
  unpack(set_aside(owner, tokens)))
if keyed(owner) then
  redis.call('HSET', P .. 'job:' .. id, 'seat', 1)
  redis.call('HINCRBY', P .. 'live', owner, 1)
end
if ARGV[11] ~= '' then redis.call('HSET', P .. 'job:' .. id, 'watched', ARGV[11]) end
if ARGV[17] ~= '' then redis.call('HSET', P .. 'job:' .. id, 'traceparent', ARGV[17]) end
if ARGV[12] ~= '' then redis.call('HSET', P .. 'job:' .. id, 'keep_ms', ARGV[12]) end
if ARGV[16] ~= '' then redis.call('HSET', P .. 'job:' .. id, 'webhook', ARGV[16]) end
local answer = 'created'
local room = priority == 'bulk' and redis.call('GET', P .. 'bulk_room')
if room and (holds(lane) or outstanding(lane) >= tonumber(room)) then
  redis.call('ZADD', P .. 'held:' .. account(owner, lane), seq, id)
  redis.call('HINCRBY', P .. 'held', account(owner, lane), 1)
  wake()
  answer = 'held'
else
  wait_in_queue(id, priority, lane)
  if priority == 'bulk' then count_in(id, owner, lane) end
end
return { answer, redis.call('HGETALL', P .. 'job:' .. id) }
