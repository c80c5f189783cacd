-- needs: base, job_states, jobs
-- ARGV: an object of id, fencing_token, status, model (that ran it, '' for unknown), ttl_ms (of results), tokens (of prompt and
--       answer); then the result and the error, each as JSON or ''
-- Returns 1 if the job now holds this end, 0 if it is not this claim's to end.
local args = cjson.decode(ARGV[1])
local job = load_job(args.id)
local fencing_token = args.fencing_token
if not job or job.fence ~= fencing_token then return 0 end
if job.written_fence == fencing_token then return 1 end -- the reply of the first try was lost
if job.status ~= 'running' then return 0 end
close(job, args.status, ARGV[2], ARGV[3], args.ttl_ms, args.tokens, 'written_fence', int(fencing_token),
  'model', job.model == '' and args.model or job.model)
return 1
