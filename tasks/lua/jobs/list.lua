-- needs: base, jobs
-- ARGV: an object of status, after (the id to start after), below (the sequence number to start below), limit, owner,
--       looks (most records to look at), filters (metadata, name -> value); of these status, after, below and owner may
--       be absent.
-- A page ends early where its records would be larger than PAGE_BYTES together, or enough were looked at.
-- Returns 'unknown' if there is no such id to start after, else 'ok', 1 or 0 for more, the sequence number and the id
-- of the last record that was looked at if there are more to look at, '' and '' otherwise, and the ids.
local args = cjson.decode(ARGV[1])
local CHUNK = 200
local PAGE_BYTES = 4194304
local status, owner, filters = args.status, args.owner, args.filters
local base = not owner and P .. 'jobs' or P .. 'owner:' .. owner .. ':jobs'

local below = '+inf'
if args.below then
  below = '(' .. args.below
elseif args.after then
  local seq = redis.call('ZSCORE', base, args.after)
  if not seq then return { 'unknown' } end
  below = '(' .. seq
end

-- Who may see everything walks the smallest index. Any other walks its own: the time that the common ones take tells
-- what others have in them.
local walked = base
if not owner then
  local indexes = { base }
  if status then table.insert(indexes, P .. 'status:' .. status) end
  for name, value in pairs(filters) do table.insert(indexes, meta_key(name, value)) end
  table.sort(indexes, function(a, b) return redis.call('ZCARD', a) < redis.call('ZCARD', b) end)
  walked = indexes[1]
end

local function fits(id)
  if not status and not next(filters) then return true end
  local record = redis.call('HMGET', P .. 'job:' .. id, 'status', 'metadata')
  if status and record[1] ~= status then return false end
  local metadata = cjson.decode(record[2] or '{}')
  for name, value in pairs(filters) do
    if metadata[name] ~= value then return false end
  end
  return true
end

local page, bytes, looked, full, last = {}, 0, 0, false, nil
local ids
repeat
  ids = redis.call('ZREVRANGEBYSCORE', walked, below, '-inf', 'LIMIT', 0, math.min(CHUNK, args.looks - looked))
  for _, id in ipairs(ids) do
    looked = looked + 1
    if fits(id) then
      for _, field in ipairs({ 'request', 'result' }) do
        bytes = bytes + redis.call('HSTRLEN', P .. 'job:' .. id, field)
      end
      full = #page == args.limit or (#page > 0 and bytes > PAGE_BYTES)
      if full then break end
      table.insert(page, id)
    end
    last = id
  end
  if #ids > 0 then below = '(' .. redis.call('ZSCORE', walked, ids[#ids]) end
until full or #ids == 0 or looked >= args.looks

if full then return { 'ok', 1, '', '', unpack(page) } end
if #ids == 0 or not last then return { 'ok', 0, '', '', unpack(page) } end
return { 'ok', 1, redis.call('ZSCORE', walked, last), last, unpack(page) }
