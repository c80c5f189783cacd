-- needs: base, batches, leader
-- ARGV: leader token, id. All results are in parts; lines that were never sent are neither completed nor failed.
-- Returns 'ok', or 'lost' if another leads or has ended it.
if not renew_lead(ARGV[1]) then return 'lost' end
local key = P .. 'batch:' .. ARGV[2]
if is_over(ARGV[2]) then return 'lost' end
if not redis.call('HGET', key, 'finalizing_at') then
  redis.call('HSET', key, 'finalizing_at', int(NOW))
  if redis.call('HGET', key, 'status') ~= 'cancelling' then redis.call('HSET', key, 'status', 'finalizing') end
end
return 'ok'
