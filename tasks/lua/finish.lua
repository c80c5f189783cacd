-- ARGV: id, fence, status, result JSON or '', error JSON or '', result ttl ms
-- Returns 1 if the job now holds this end, 0 if it is not this claim's to end.
local job = load_job(ARGV[1])
local fence = tonumber(ARGV[2])
if not job or job.fence ~= fence then return 0 end
if job.written_fence == fence then return 1 end -- the reply of the first try was lost
if job.status ~= 'running' then return 0 end
redis.call('HSET', P .. 'job:' .. job.id, 'written_fence', int(fence))
close(job, ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]))
return 1
