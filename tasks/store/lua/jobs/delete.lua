-- needs: base, job_records, jobs
-- ARGV: id, who asks or ''. Returns 'deleted' | 'active' | 'unknown'.
local job = load_job(ARGV[1])
if not job or not seen(ARGV[2], job.owner) then return 'unknown' end
if not TERMINAL[job.status] or job.batch ~= '' then return 'active' end -- its batch still needs the result
forget(job)
return 'deleted'
