-- needs: base, jobs
-- ARGV: an object of status, after (the id to start after), below (the sequence number to start below), limit, owner,
--       most (entries of indexes to look at), filters (metadata, name -> value); of these status, after, below and owner may
--       be absent.
-- A page ends early where its records would be larger than PAGE_BYTES together, or enough were looked at.
-- Returns 'unknown' if there is no such id to start after, else 'ok', 1 or 0 for more, the sequence number and the id
-- of the last record that was looked at if there are more to look at, '' and '' otherwise, and the ids.
local args = cjson.decode(ARGV[1])
local CHUNK = 200
local PAGE_BYTES = 4194304
local status, owner, limit, most = args.status, args.owner, args.limit, args.most
local scope = owner and P .. 'owner:' .. owner .. ':' or P

local below = '+inf'
if args.below then
  below = '(' .. args.below
elseif args.after then
  local seq = redis.call('ZSCORE', scope .. 'jobs', args.after)
  if not seq then return { 'unknown' } end
  below = '(' .. seq
end

-- The smallest index of what is asked for is walked, and its ids are looked up in the others. All of them are of the
-- asking owner alone: the time that the common ones take would tell what others have in them.
local indexes = {}
local function ask(index)
  table.insert(indexes, { key = scope .. index, size = redis.call('ZCARD', scope .. index) })
end
if status then ask('status:' .. status) end
for name, value in pairs(args.filters) do ask(meta_index(name, value)) end
if #indexes == 0 then ask('jobs') end
table.sort(indexes, function(a, b) return a.size < b.size end)
local walked = indexes[1].key
most = math.max(1, math.floor(most / #indexes)) -- ids

-- Those of the ids that are in all other indexes, as a set.
local function fitting(ids)
  local left = ids
  for i = 2, #indexes do
    if #left == 0 then break end
    local found = {}
    for n, seq in ipairs(redis.call('ZMSCORE', indexes[i].key, unpack(left))) do
      if seq then table.insert(found, left[n]) end
    end
    left = found
  end
  local set = {}
  for _, id in ipairs(left) do set[id] = true end
  return set
end

local page, bytes, looked, full, last = {}, 0, 0, false, nil
local ids
repeat
  ids = redis.call('ZREVRANGEBYSCORE', walked, below, '-inf', 'LIMIT', 0, math.min(CHUNK, most - looked))
  local fit = fitting(ids)
  for _, id in ipairs(ids) do
    looked = looked + 1
    if fit[id] then
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
