-- needs: base, job_states, jobs
-- ARGV: id, result ttl ms, who asks or ''. A queued job ends at once, a running one is flagged, an ended one stays.
-- Returns the record, or nothing for an unknown id.
local job = load_job(ARGV[1])
if not job or not seen(ARGV[3], job.owner) then return {} end
cancel(job, tonumber(ARGV[2]))
return redis.call('HGETALL', P .. 'job:' .. job.id)
