-- Returns of each key, oldest first, its record, what it has spent today, and its live jobs.
local keys = {}
for _, id in ipairs(redis.call('LRANGE', P .. 'key_ids', 0, -1)) do
  table.insert(keys, { redis.call('HGETALL', P .. 'key:' .. id), (spent_today(id)),
    tonumber(redis.call('HGET', P .. 'live', id) or '0') })
end
return keys
