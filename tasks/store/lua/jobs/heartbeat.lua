-- needs: base, jobs
-- ARGV: lease ms, then id and fencing token of each running job of one worker.
-- Returns for each: 'ok' (lease renewed), 'streaming' (renewed, and a client reads the text), 'cancel' (renewed, but
-- asked to stop), 'lost' (not ours any more).
local answers = {}
local lease_until = int(NOW + tonumber(ARGV[1]))
for i = 2, #ARGV, 2 do
  local job = load_job(ARGV[i])
  if not job or job.status ~= 'running' or job.fence ~= tonumber(ARGV[i + 1]) then
    table.insert(answers, 'lost')
  else
    redis.call('HSET', P .. 'job:' .. job.id, 'lease_until', lease_until)
    redis.call('ZADD', P .. 'leases', lease_until, job.id)
    local live = job.watched ~= '' and 'streaming' or 'ok'
    table.insert(answers, job.cancel_requested ~= '' and 'cancel' or live)
  end
end
return answers
