-- needs: base, files
-- ARGV: id, again ms, who asks or ''. The record goes first; its object is on the list of what is removed from then on.
-- Returns 'deleted' | 'in_use' | 'unknown'.
local id = ARGV[1]
local fields = redis.call('HMGET', P .. 'file:' .. id, 'id', 'owner')
if not fields[1] or not seen(ARGV[3], fields[2] or '') then return 'unknown' end
if redis.call('SCARD', P .. 'file_uses:' .. id) > 0 then return 'in_use' end
drop_file(id, NOW + tonumber(ARGV[2])) -- later than now: the caller removes the object itself
return 'deleted'
