-- needs: base, jobs
-- ARGV: status or '', id to start after or '', sequence number to start below or '', limit, owner or '' for all, most
--       records to look at, then name and value of each metadata filter.
-- A page ends early where its records would be larger than PAGE_BYTES together, or enough were looked at.
-- Returns 'unknown' if there is no such id to start after, else 'ok', 1 or 0 for more, the sequence number and the id
-- of the last record that was looked at if there are more to look at, '' and '' otherwise, and the ids.
local CHUNK = 200
local PAGE_BYTES = 4194304
local status, owner, limit, most = ARGV[1], ARGV[5], tonumber(ARGV[4]), tonumber(ARGV[6])
local base = owner == '' and P .. 'jobs' or P .. 'owner:' .. owner .. ':jobs'

local below = '+inf'
if ARGV[3] ~= '' then
  below = '(' .. ARGV[3]
elseif ARGV[2] ~= '' then
  local seq = redis.call('ZSCORE', base, ARGV[2])
  if not seq then return { 'unknown' } end
  below = '(' .. seq
end

-- Who may see everything walks the smallest index. Any other walks its own: the time that the common ones take tells
-- what others have in them.
local walked = base
if owner == '' then
  local indexes = { base }
  if status ~= '' then table.insert(indexes, P .. 'status:' .. status) end
  for i = 7, #ARGV, 2 do table.insert(indexes, meta_key(ARGV[i], ARGV[i + 1])) end
  table.sort(indexes, function(a, b) return redis.call('ZCARD', a) < redis.call('ZCARD', b) end)
  walked = indexes[1]
end

local function fits(id)
  if status == '' and #ARGV < 7 then return true end
  local record = redis.call('HMGET', P .. 'job:' .. id, 'status', 'metadata')
  if status ~= '' and record[1] ~= status then return false end
  if #ARGV < 7 then return true end
  local metadata = cjson.decode(record[2] or '{}')
  for i = 7, #ARGV, 2 do
    if metadata[ARGV[i]] ~= ARGV[i + 1] then return false end
  end
  return true
end

local page, bytes, looked, full, last = {}, 0, 0, false, nil
local ids
repeat
  ids = redis.call('ZREVRANGEBYSCORE', walked, below, '-inf', 'LIMIT', 0, math.min(CHUNK, most - looked))
  for _, id in ipairs(ids) do
    looked = looked + 1
    if fits(id) then
      for _, field in ipairs({ 'request', 'result' }) do
        bytes = bytes + redis.call('HSTRLEN', P .. 'job:' .. id, field)
      end
      full = #page == limit or (#page > 0 and bytes > PAGE_BYTES)
      if full then break end
      table.insert(page, id)
    end
    last = id
  end
  if #ids > 0 then below = '(' .. redis.call('ZSCORE', walked, ids[#ids]) end
until full or #ids == 0 or looked >= most

if full then return { 'ok', 1, '', '', unpack(page) } end
if #ids == 0 or not last then return { 'ok', 0, '', '', unpack(page) } end
return { 'ok', 1, redis.call('ZSCORE', walked, last), last, unpack(page) }
