-- needs: base, job_states, jobs, queues
-- ARGV: an object of id, worker, holder (name of its connections), claim_id, lease_ms, max_attempts, ttl_ms (of results),
--       model (that the worker serves, '' for any), isolates (it runs last attempts alone and says when one begins)
-- Returns 'claimed' with an object of what the worker needs, the request, what it shares with others and its prompt, as JSON
-- or ''; or why not: 'unknown' | 'busy' | 'done' | 'elsewhere' (it waits now in the queue of the model that it asks for).
local args = cjson.decode(ARGV[1])
local job = load_job(args.id)
if not job then return { 'unknown' } end
if TERMINAL[job.status] then return { 'done' } end

local key = P .. 'job:' .. job.id
local ours = job.status == 'running' and job.claim_token == args.claim_id -- the reply of this very claim was lost
if not ours then
  if job.status == 'running' and job.lease_until > NOW then return { 'busy' } end
  if close_if_not_runnable(job, args.max_attempts, args.ttl_ms) then return { 'done' } end

  note_claimed(job)

  -- Sent to the queue of all, by an older release or before its model was known.
  local model, own = job.model, args.model
  if own ~= '' and model ~= '' and model ~= own and (job.lane == model or known(model)) then
    leave_lists(job)
    move_to_model_queue(job, model)
    requeue(job, job.attempts)
    return { 'elsewhere' }
  end

  leave_lists(job)
  -- Lost before, perhaps by the fault of another job that ran beside it: the last attempt is made without others.
  local last = job.attempts > 0 and job.attempts + 1 >= args.max_attempts
  job.uncounted = last and args.isolates and 1 or ''
  job.fence = next_fence(job)
  if job.uncounted == '' then job.attempts = job.attempts + 1 end
  move(job, 'running', 'fence', int(job.fence), 'attempts', int(job.attempts), 'worker', args.worker,
    'holder', args.holder or '', 'claim_token', args.claim_id, 'started_at', int(NOW), 'uncounted', job.uncounted)
  if job.watched ~= '' then redis.call('DEL', P .. 'text:' .. job.id) end -- of an earlier attempt
  notify_subscribers(job)
end

local lease_until = int(NOW + args.lease_ms)
redis.call('HSET', key, 'lease_until', lease_until)
redis.call('ZADD', P .. 'leases', lease_until, job.id)
local rest = redis.call('HMGET', key, 'request', 'created_at', 'traceparent', 'prompt_part')
local shared = {}
if job.shared ~= '' then shared = redis.call('HMGET', P .. 'shared:' .. job.shared, 'rest', rest[4] or '') end
local isolated = job.uncounted ~= ''
-- The deadline as text: the encoder would round it.
return { 'claimed', cjson.encode({ fencing_token = job.fence, attempts = job.attempts + (isolated and 1 or 0), model = job.model,
  priority = job.priority, deadline = job.deadline and int(job.deadline) or '', created_at = tonumber(rest[2]), now = NOW,
  streaming = job.watched ~= '', queued_at = job.enqueued_at, batch = job.batch, traceparent = rest[3] or '',
  isolated = isolated }), rest[1], shared[1] or '', shared[2] or '' }
