-- ARGV: leader token, id, status, then names and values of further fields. Its end, once.
-- Returns 'ok', or 'lost' if another leads.
if redis.call('GET', P .. 'leader') ~= ARGV[1] then return 'lost' end
local id = ARGV[2]
local key = P .. 'batch:' .. id
if redis.call('ZREM', P .. 'batches:active', id) == 1 then
  redis.call('HSET', key, 'status', ARGV[3], ARGV[3] .. '_at', int(NOW), unpack(ARGV, 4))
  redis.call('SREM', P .. 'file_uses:' .. redis.call('HGET', key, 'input_file_id'), id)
  redis.call('PUBLISH', P .. 'events', id .. ' ' .. ARGV[3])
end
return 'ok'
