-- needs: base, batches, files, leader
-- ARGV: an object with leader token, id, bytes of the copy of its lines, max_files and max_files_bytes of an owner.
-- Of a batch that is made of a table, whose copy may be larger than its file.
-- Returns 'ok', as files_full says, or 'lost' if another leads or has ended it.
local args = cjson.decode(ARGV[1])
if not renew_lead(args.token) or is_over(args.id) then return { 'lost', '' } end
local key = P .. 'batch:' .. args.id
local owner = redis.call('HGET', key, 'owner')
local more = args.bytes - tonumber(redis.call('HGET', key, 'copied') or '0')
if more > 0 then
  local full = files_full(owner, 0, more, args.max_files, args.max_files_bytes)
  if full then return full end
end
count_files(owner, 0, more)
redis.call('HSET', key, 'copied', int(args.bytes))
return { 'ok', '' }
