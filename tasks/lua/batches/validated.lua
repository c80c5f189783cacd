-- needs: base, batches, leader, quotas
-- ARGV: leader token, id, chunks, lines, invalid lines, validation errors JSON, model, then code and count of each
--       reason why lines are invalid.
-- Returns 'ok', or 'lost' if another leads or has ended it.
if not leads(ARGV[1]) then return 'lost' end
local key = P .. 'batch:' .. ARGV[2]
if redis.call('HGET', key, 'validated') == '1' then return 'ok' end
if is_over(ARGV[2]) then return 'lost' end
redis.call('HSET', key, 'validated', 1, 'chunks', ARGV[3], 'total', ARGV[4], 'errors', ARGV[6], 'model', ARGV[7])
resize(key, redis.call('HGET', key, 'owner'), #ARGV[6])
redis.call('HINCRBY', key, 'failed', ARGV[5])
for i = 8, #ARGV, 2 do redis.call('HINCRBY', key .. ':codes', ARGV[i], ARGV[i + 1]) end
if redis.call('HGET', key, 'status') == 'validating' then
  redis.call('HSET', key, 'status', 'in_progress', 'in_progress_at', int(NOW))
end
wake()
return 'ok'
