-- needs: base, batches, leader, quotas
-- ARGV: leader token, id, name of the segment, lines in it, their bytes, SHA-1 of the one that ended last. The
-- segment is durable: its lines are dropped here.
-- Returns 'ok', 'lost' if another leads or has ended it, or 'moved' if these lines do not lead the list of results: the
-- segment was counted already, or Redis has lost its last writes, and some of them run again.
local token, id, name, taken, bytes, last = unpack(ARGV)
if not renew_lead(token) then return 'lost' end
local key = P .. 'batch:' .. id
if is_over(id) then return 'lost' end
local taken_last = redis.call('LINDEX', key .. ':results', taken - 1)
if tonumber(taken) > 0 and (not taken_last or redis.sha1hex(taken_last) ~= last) then return 'moved' end
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
