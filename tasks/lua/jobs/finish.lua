-- needs: base, job_states, jobs
-- ARGV: id, fence, status, result JSON or '', error JSON or '', model that ran it or '', result ttl ms,
--       tokens of prompt and answer
-- Returns 1 if the job now holds this end, 0 if it is not this claim's to end.
local job = load_job(ARGV[1])
local fence = tonumber(ARGV[2])
if not job or job.fence ~= fence then return 0 end
if job.written_fence == fence then return 1 end -- the reply of the first try was lost
if job.status ~= 'running' then return 0 end
local key = P .. 'job:' .. job.id
redis.call('HSET', key, 'written_fence', int(fence))
if (redis.call('HGET', key, 'model') or '') == '' then redis.call('HSET', key, 'model', ARGV[6]) end
close(job, ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[7]), tonumber(ARGV[8]))
return 1
