-- needs: base, batches, leader
-- ARGV: leader token, id, chunks that can be sent from now on, lines so far.
-- While a file is still read: its first line need not wait for its last. Returns 'ok', what has ended the batch
-- meanwhile, or '', and how many chunks can be sent by what anybody said; or 'lost' if another leads or has ended it.
if not renew_lead(ARGV[1]) then return { 'lost', '', 0 } end
local key = P .. 'batch:' .. ARGV[2]
if redis.call('HGET', key, 'validated') == '1' then return { 'ok', '', redis.call('HGET', key, 'chunks') } end
if is_over(ARGV[2]) then return { 'lost', '', 0 } end
if tonumber(redis.call('HGET', key, 'chunks')) < tonumber(ARGV[3]) then
  redis.call('HSET', key, 'chunks', ARGV[3])
  wake()
end
redis.call('HSET', key, 'total', ARGV[4])
return { 'ok', unpack(redis.call('HMGET', key, 'ending', 'chunks')) }
