-- needs: base
-- ARGV: id, how ('cancelled' or 'expired'), who asks or ''. From now on nothing of the batch is sent; what runs is ended by others.
-- Returns 0 for an unknown id; an ended batch stays as it is.
local key = P .. 'batch:' .. ARGV[1]
local now = redis.call('HMGET', key, 'status', 'ending', 'owner')
if not now[1] or not seen(ARGV[3], now[3]) then return 0 end
local live = now[1] == 'validating' or now[1] == 'in_progress'
if live and now[2] == '' then
  redis.call('HSET', key, 'ending', ARGV[2])
  if ARGV[2] == 'cancelled' then redis.call('HSET', key, 'status', 'cancelling', 'cancelling_at', int(NOW)) end
  wake()
end
return 1
