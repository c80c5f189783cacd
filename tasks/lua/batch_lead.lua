-- ARGV: leader token, lease ms, room for bulk jobs. Takes or keeps the lead.
-- Returns 1 and what there is to do (owners' outstanding and held jobs, active batches), or 0 if another leads.
local holder = redis.call('GET', P .. 'leader')
if holder and holder ~= ARGV[1] then return { 0 } end
redis.call('SET', P .. 'leader', ARGV[1], 'PX', ARGV[2])
redis.call('SET', P .. 'bulk_room', ARGV[3], 'PX', ARGV[2])
local batches = {}
for _, id in ipairs(redis.call('ZRANGE', P .. 'batches:active', 0, -1)) do
  local key = P .. 'batch:' .. id
  table.insert(batches, { redis.call('HGETALL', key), redis.call('SCARD', key .. ':live'),
    redis.call('LLEN', key .. ':ended') })
end
return { 1, int(NOW), redis.call('HGETALL', P .. 'outstanding'), redis.call('HGETALL', P .. 'held'), batches }
