-- ARGV: status or '', id to start after or '', limit, owner or '' for all, then name and value of each metadata filter.
-- A page ends early where its records would be larger than PAGE_BYTES together.
-- Returns 'unknown' if there is no such id to start after, else 'ok', 1 or 0 for more, and the ids.
local CHUNK = 200
local PAGE_BYTES = 4194304
local base = ARGV[4] == '' and P .. 'jobs' or P .. 'owner:' .. ARGV[4] .. ':jobs'
local indexes = { base }
if ARGV[1] ~= '' then table.insert(indexes, P .. 'status:' .. ARGV[1]) end
for i = 5, #ARGV, 2 do table.insert(indexes, meta_key(ARGV[i], ARGV[i + 1])) end

local below = '+inf'
if ARGV[2] ~= '' then
  local seq = redis.call('ZSCORE', base, ARGV[2])
  if not seq then return { 'unknown' } end
  below = '(' .. seq
end

-- Walk the smallest index and look the ids up in the others.
table.sort(indexes, function(a, b) return redis.call('ZCARD', a) < redis.call('ZCARD', b) end)

local limit = tonumber(ARGV[3])
local found = {}
while #found <= limit do
  local ids = redis.call('ZREVRANGEBYSCORE', indexes[1], below, '-inf', 'LIMIT', 0, CHUNK)
  for _, id in ipairs(ids) do
    local fits = true
    for i = 2, #indexes do
      fits = fits and redis.call('ZSCORE', indexes[i], id)
    end
    if fits then table.insert(found, id) end
    if #found > limit then break end
  end
  if #ids < CHUNK then break end
  below = '(' .. redis.call('ZSCORE', indexes[1], ids[CHUNK])
end

local page, bytes = {}, 0
for _, id in ipairs(found) do
  for _, field in ipairs({ 'request', 'result' }) do bytes = bytes + redis.call('HSTRLEN', P .. 'job:' .. id, field) end
  if #page == limit or (#page > 0 and bytes > PAGE_BYTES) then break end
  table.insert(page, id)
end
return { 'ok', #page < #found and 1 or 0, unpack(page) }
