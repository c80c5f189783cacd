-- ARGV: id. Returns 'deleted' | 'active' | 'unknown'.
local id = ARGV[1]
if redis.call('ZSCORE', P .. 'batches:active', id) then return 'active' end
if redis.call('EXISTS', P .. 'batch:' .. id) == 0 then return 'unknown' end
drop_batch(id)
return 'deleted'
