-- needs: base, batches
-- ARGV: id, who asks or ''. Returns 'deleted' | 'active' | 'unknown'.
local id = ARGV[1]
local owner = redis.call('HGET', P .. 'batch:' .. id, 'owner')
if not owner or not seen(ARGV[2], owner) then return 'unknown' end
if redis.call('ZSCORE', P .. 'batches:active', id) then return 'active' end
drop_batch(id)
return 'deleted'
