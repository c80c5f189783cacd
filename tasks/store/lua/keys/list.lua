-- needs: base, quotas
-- Returns of each key, oldest first, its record, then names and values of what it has: tokens spent today, live jobs
-- and batches, files and their bytes, and the bytes of its records.
local keys = {}
local function count(name, id) return tonumber(redis.call('HGET', P .. name, id) or '0') end
for _, id in ipairs(redis.call('LRANGE', P .. 'key_ids', 0, -1)) do
  table.insert(keys, { redis.call('HGETALL', P .. 'key:' .. id), 'tokens_today', (spent_today(id)),
    'jobs', count('live', id), 'batches', count('live_batches', id), 'files', count('file_counts', id),
    'files_bytes', count('file_bytes', id), 'stored_bytes', count('stored_bytes', id) })
end
return keys
