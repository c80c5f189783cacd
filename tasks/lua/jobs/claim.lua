-- needs: base, job_states, jobs, queues
-- ARGV: id, worker, claim token, lease ms, max attempts, result ttl ms,
--       '1' if the worker runs last attempts alone and says when one begins, or '', its model or ''
-- Returns 'claimed' with what the worker needs, or why not: 'unknown' | 'busy' | 'done', or 'elsewhere' with the model
-- in whose queue the job waits now, its priority and preview: the worker sends the message there.
local job = load_job(ARGV[1])
if not job then return { 'unknown' } end
if TERMINAL[job.status] then return { 'done' } end

local key = P .. 'job:' .. job.id
local ours = job.status == 'running' and job.claim_token == ARGV[3] -- the reply of this very claim was lost
if not ours then
  if job.status == 'running' and job.lease_until > NOW then return { 'busy' } end
  if closed_before_run(job, tonumber(ARGV[5]), tonumber(ARGV[6])) then return { 'done' } end

  local sent = queue_key('claimed', job.priority, job.lane)
  if job.enqueued_at > tonumber(redis.call('GET', sent) or '0') then redis.call('SET', sent, int(job.enqueued_at)) end

  -- Sent to the queue of all, by an older release or before its model was known.
  local model, own = redis.call('HGET', key, 'model') or '', ARGV[8] or ''
  if own ~= '' and model ~= '' and model ~= own and (job.lane == model or known(model)) then
    change_lane(job, model)
    requeue(job, job.attempts)
    return { 'elsewhere', model, job.priority, job.preview }
  end

  leave_lists(job)
  move(job, 'running')
  -- Lost before, perhaps by the fault of another job that ran beside it: the last attempt is made without others.
  local last = job.attempts > 0 and job.attempts + 1 >= tonumber(ARGV[5])
  job.uncounted = last and ARGV[7] == '1' and 1 or ''
  job.fence = job.fence + 1
  if job.uncounted == '' then job.attempts = job.attempts + 1 end
  redis.call('HSET', key, 'fence', int(job.fence), 'attempts', int(job.attempts), 'worker', ARGV[2],
    'claim_token', ARGV[3], 'started_at', int(NOW), 'uncounted', job.uncounted)
  if job.watched ~= '' then redis.call('DEL', P .. 'text:' .. job.id) end -- of an earlier attempt
  tell_watchers(job)
end

local lease_until = int(NOW + tonumber(ARGV[4]))
redis.call('HSET', key, 'lease_until', lease_until)
redis.call('ZADD', P .. 'leases', lease_until, job.id)
local rest = redis.call('HMGET', key, 'request', 'model', 'deadline', 'created_at', 'traceparent', 'prompt_part')
local shared = {}
if job.shared ~= '' then shared = redis.call('HMGET', P .. 'shared:' .. job.shared, 'rest', rest[6] or '') end
local alone = job.uncounted ~= ''
return { 'claimed', int(job.fence), int(job.attempts + (alone and 1 or 0)), rest[1], rest[2], job.priority, rest[3],
  rest[4], int(NOW), job.preview, job.watched, int(job.enqueued_at), job.batch, rest[5] or '', alone and '1' or '',
  job.lane, shared[1] or '', shared[2] or '' }
