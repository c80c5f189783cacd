-- needs: base, quotas
-- Returns of each key, oldest first, its record, what it has spent today, its live jobs, its live
-- batches, its files and their bytes, and the bytes of its records.
local keys = {}
local function count(name, id) return tonumber(redis.call('HGET', P .. name, id) or '0') end
for _, id in ipairs(redis.call('LRANGE', P .. 'key_ids', 0, -1)) do
  table.insert(keys, { redis.call('HGETALL', P .. 'key:' .. id), (spent_today(id)),
    count('live', id), count('live_batches', id), count('file_counts', id), count('file_bytes', id),
    count('stored_bytes', id) })
end
return keys
