-- needs: base, jobs, leader, queues
-- ARGV: leader token, priority, then account and number. Makes so many of the accounts' deferred jobs ready to be sent.
-- Returns 'lost' if another leads, else 'ok' and id, preview and model queue of each.
if not renew_lead(ARGV[1]) then return { 'lost' } end
local answer = { 'ok' }
for i = 3, #ARGV, 2 do
  local deferred = counts_key('held', ARGV[2]) .. ':' .. ARGV[i]
  for _, job in ipairs(jobs_of(deferred, redis.call('ZRANGE', deferred, 0, tonumber(ARGV[i + 1]) - 1))) do
    local id = job.id
    leave_lists(job)
    redis.call('HSET', P .. 'job:' .. id, 'enqueued_at', int(NOW))
    add_pending(id, job.priority, job.lane)
    add_in_flight(id, job.priority, job.owner, job.lane)
    for _, value in ipairs({ id, job.preview, job.lane }) do table.insert(answer, value) end
  end
end
return answer
