-- needs: base, jobs
-- ARGV: id, who asks or ''. Somebody listens from now on: the worker of a live job is told at its next heartbeat.
-- Returns the record, or nothing for an unknown id.
local job = load_job(ARGV[1])
if not job or not seen(ARGV[2], job.owner) then return {} end
if not TERMINAL[job.status] then redis.call('HSET', P .. 'job:' .. job.id, 'watched', 1) end
return redis.call('HGETALL', P .. 'job:' .. job.id)
