-- needs: base, batches, leader, quotas
-- ARGV: leader token, id, number of the segment, its name, lines in it, their bytes. The segment is durable: its lines
-- are dropped here.
-- Returns 'ok', 'lost' if another leads or has ended it, or 'moved' if a segment of this number was counted already.
local token, id, number, name, taken, bytes = unpack(ARGV)
if not renew_lead(token) then return 'lost' end
local key = P .. 'batch:' .. id
if redis.call('HGET', key, 'parts') ~= number then return 'moved' end
if is_over(id) then return 'lost' end
redis.call('HINCRBY', key, 'parts', 1)
redis.call('RPUSH', key .. ':parts', name)
redis.call('LTRIM', key .. ':results', tonumber(taken), -1)
redis.call('HINCRBY', key, 'result_bytes', -bytes)
count_bytes(redis.call('HGET', key, 'owner'), -bytes)
if redis.call('EXISTS', key .. ':results') == 0 then
  redis.call('SREM', key .. ':live', 'results') -- that it has not ended, for io workers of the release before
  if redis.call('SCARD', key .. ':live') == 0 then wake() end
end
return 'ok'
