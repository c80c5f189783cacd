-- needs: job_states, jobs
-- ARGV: id, fencing token, result ttl ms. The attempt does not count: nothing went wrong with the job.
-- Returns 1 if the job is queued again, 0 if not.
local job = load_job(ARGV[1])
if not job or job.status ~= 'running' or job.fence ~= tonumber(ARGV[2]) then return 0 end
if job.cancel_requested ~= '' then
  close(job, 'cancelled', '', '', tonumber(ARGV[3]))
  return 0
end
requeue(job, job.attempts - (job.uncounted == '' and 1 or 0))
return 1
