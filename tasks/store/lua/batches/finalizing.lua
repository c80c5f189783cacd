-- needs: base, batches, leader
-- ARGV: leader token, id, lines that were never sent, their code. All results are in parts.
-- Returns 'ok', or 'lost' if another leads or has ended it.
if not renew_lead(ARGV[1]) then return 'lost' end
local key = P .. 'batch:' .. ARGV[2]
if is_over(ARGV[2]) then return 'lost' end
if not redis.call('HGET', key, 'finalizing_at') then
  redis.call('HSET', key, 'finalizing_at', int(NOW))
  redis.call('HINCRBY', key, 'failed', ARGV[3])
  if tonumber(ARGV[3]) > 0 then redis.call('HINCRBY', key .. ':codes', ARGV[4], ARGV[3]) end
  if redis.call('HGET', key, 'status') ~= 'cancelling' then redis.call('HSET', key, 'status', 'finalizing') end
end
return 'ok'
