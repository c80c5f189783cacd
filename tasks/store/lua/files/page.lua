-- needs: base
-- ARGV: purpose or '', id to start after or '', limit, 'asc' or 'desc', owner or '' for all
-- Returns 'unknown' if there is no such id to start after, else 'ok', 1 or 0 for more, and the records.
local all = ARGV[5] == '' and P .. 'files' or P .. 'owner:' .. ARGV[5] .. ':files'
local index = all .. (ARGV[1] ~= '' and ':' .. ARGV[1] or '')
local limit = tonumber(ARGV[3])
local seq = nil
if ARGV[2] ~= '' then
  seq = redis.call('ZSCORE', all, ARGV[2])
  if not seq then return { 'unknown' } end
end

local ids
if ARGV[4] == 'asc' then
  ids = redis.call('ZRANGEBYSCORE', index, seq and '(' .. seq or '-inf', '+inf', 'LIMIT', 0, limit + 1)
else
  ids = redis.call('ZREVRANGEBYSCORE', index, seq and '(' .. seq or '+inf', '-inf', 'LIMIT', 0, limit + 1)
end
local page = { 'ok', #ids > limit and 1 or 0 }
for i = 1, math.min(#ids, limit) do table.insert(page, redis.call('HGETALL', P .. 'file:' .. ids[i])) end
return page
