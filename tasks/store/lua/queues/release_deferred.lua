-- needs: jobs, leader, queues
-- ARGV: leader token, priority, then account and number. Sends so many of the accounts' deferred jobs.
-- Returns 'lost' if another leads, else 'ok' and their ids.
if not renew_lead(ARGV[1]) then return { 'lost' } end
local answer = { 'ok' }
for i = 3, #ARGV, 2 do
  local deferred = counts_key('held', ARGV[2]) .. ':' .. ARGV[i]
  for job in jobs_of(deferred, redis.call('ZRANGE', deferred, 0, tonumber(ARGV[i + 1]) - 1)) do
    release(job)
    table.insert(answer, job.id)
  end
end
return answer
