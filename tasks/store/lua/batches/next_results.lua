-- needs: base, leader
-- ARGV: leader token, batch id, most. Returns 'lost', or 'ok', the number of the next segment, and the lines that ended
-- first and that are in no segment yet, as a segment holds them.
if not renew_lead(ARGV[1]) then return { 'lost' } end
local key = P .. 'batch:' .. ARGV[2]
return { 'ok', redis.call('HGET', key, 'parts'), unpack(redis.call('LRANGE', key .. ':results', 0, tonumber(ARGV[3]) - 1)) }
