-- needs: base, batches, job_records, jobs, leader
-- ARGV: leader token, batch id, number of the part, its name, results in it, input, cached and output tokens, then
--       code and count of each failure. Their jobs' records are dropped: the part is durable.
-- Returns 'ok', 'lost' if another leads or has ended it, or 'moved' if a part of this number was counted already.
if not leads(ARGV[1]) then return 'lost' end
local key = P .. 'batch:' .. ARGV[2]
if redis.call('HGET', key, 'parts') ~= ARGV[3] then return 'moved' end
if is_over(ARGV[2]) then return 'lost' end
redis.call('HINCRBY', key, 'parts', 1)
redis.call('RPUSH', key .. ':parts', ARGV[4])
local last = tonumber(ARGV[5]) - 1
for _, id in ipairs(redis.call('LRANGE', key .. ':ended', 0, last)) do
  local job = load_job(id)
  if job then forget(job) end
end
redis.call('LTRIM', key .. ':ended', last + 1, -1)
for i, name in ipairs({ 'input_tokens', 'cached_tokens', 'output_tokens' }) do
  redis.call('HINCRBY', key, name, ARGV[5 + i])
end
for i = 9, #ARGV, 2 do redis.call('HINCRBY', key .. ':codes', ARGV[i], ARGV[i + 1]) end
if redis.call('LLEN', key .. ':ended') == 0 and redis.call('SCARD', key .. ':live') == 0 then wake() end
return 'ok'
