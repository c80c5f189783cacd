-- needs: base, jobs
-- ARGV: id, fencing token. Counts the last attempt of a job, now that its worker runs nothing else.
-- Returns 1, or 0 when the claim is not the sender's any more.
local job = load_job(ARGV[1])
if not job or job.status ~= 'running' or job.fence ~= tonumber(ARGV[2]) then return 0 end
if job.uncounted ~= '' then
  redis.call('HSET', P .. 'job:' .. job.id, 'attempts', int(job.attempts + 1), 'uncounted', '')
end
return 1
