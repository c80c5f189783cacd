-- needs: base, batches, job_records, jobs, leader
-- Of a batch that an earlier release began, whose lines were jobs.
-- ARGV: an object of token (of the leader), id, number (of the segment), name, taken (entries of the list that it
--       covers, those of jobs without a record too), input_tokens, cached_tokens, output_tokens, codes (why lines
--       failed -> how many), cut (answers that max_tokens cut off). Their jobs' records are dropped: the segment is
--       durable.
-- Returns 'ok', 'lost' if another leads or has ended it, or 'moved' if a segment of this number was counted already.
local args = cjson.decode(ARGV[1])
if not renew_lead(args.token) then return 'lost' end
local key = P .. 'batch:' .. args.id
if is_over(args.id) then return 'lost' end
if redis.call('HGET', key, 'parts') ~= int(args.number) then return 'moved' end
redis.call('HINCRBY', key, 'parts', 1)
redis.call('RPUSH', key .. ':parts', args.name)
local last = args.taken - 1
for _, id in ipairs(redis.call('LRANGE', key .. ':ended', 0, last)) do
  local job = load_job(id)
  if job then forget(job) end
end
redis.call('LTRIM', key .. ':ended', last + 1, -1)
for _, name in ipairs({ 'input_tokens', 'cached_tokens', 'output_tokens' }) do
  redis.call('HINCRBY', key, name, int(args[name]))
end
if args.cut > 0 then redis.call('HINCRBY', key, 'cut', int(args.cut)) end
for code, count in pairs(args.codes) do redis.call('HINCRBY', key .. ':codes', code, int(count)) end
if redis.call('LLEN', key .. ':ended') == 0 and redis.call('SCARD', key .. ':live') == 0 then wake() end
return 'ok'
