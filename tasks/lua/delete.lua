-- ARGV: id. Returns 'deleted' | 'active' | 'unknown'.
local job = load_job(ARGV[1])
if not job then return 'unknown' end
if not TERMINAL[job.status] then return 'active' end
forget(job)
return 'deleted'
