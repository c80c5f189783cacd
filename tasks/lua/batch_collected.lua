-- ARGV: leader token, batch id, number of the part, results in it, input, cached and output tokens, then code and
--       count of each failure. Their jobs' records are dropped: the part is durable.
-- Returns 'ok', 'lost', or 'moved' if this part was counted already.
if redis.call('GET', P .. 'leader') ~= ARGV[1] then return 'lost' end
local key = P .. 'batch:' .. ARGV[2]
if redis.call('HGET', key, 'parts') ~= ARGV[3] then return 'moved' end
redis.call('HINCRBY', key, 'parts', 1)
local last = tonumber(ARGV[4]) - 1
for _, id in ipairs(redis.call('LRANGE', key .. ':ended', 0, last)) do
  forget(load_job(id))
end
redis.call('LTRIM', key .. ':ended', last + 1, -1)
for i, name in ipairs({ 'input_tokens', 'cached_tokens', 'output_tokens' }) do
  redis.call('HINCRBY', key, name, ARGV[4 + i])
end
for i = 8, #ARGV, 2 do redis.call('HINCRBY', key .. ':codes', ARGV[i], ARGV[i + 1]) end
return 'ok'
