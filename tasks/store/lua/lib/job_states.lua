-- needs: base, jobs, outbox, queues, quotas
-- Changes of the state of a job: running, queued again, ended.
--
-- leases, deadlines     id -> when the lease of a running job, or the time of a live one, runs out
-- expiry                ended jobs: id -> when the record is dropped
-- ended                 status -> how many jobs have ended in it, ever
-- text:ID               the text so far of a streaming job that runs
-- tokens:GATEWAY        channel: the chunks of the text of streaming jobs that it waits for, as JSON

-- Into another status; then names and values of further fields.
local function move(job, status, ...)
  for _, scope in ipairs(scopes(job.owner)) do
    redis.call('ZREM', scope .. 'status:' .. job.status, job.id)
    redis.call('ZADD', scope .. 'status:' .. status, int(job.seq), job.id)
  end
  redis.call('HSET', P .. 'job:' .. job.id, 'status', status, ...)
  job.status = status
end

-- Tell the gateways where somebody waits for the job. record: as JSON, or nothing.
local function tell(job, record)
  local message = job.id .. ' ' .. job.status .. (record and ' ' .. record or '')
  for gateway in job.waiters:gmatch('%S+') do redis.call('PUBLISH', P .. 'events:' .. gateway, message) end
end

local function notify_subscribers(job)
  if job.watched ~= '' then tell(job) end
end

local TOLD = { 'id', 'status', 'priority', 'model', 'created_at', 'started_at', 'finished_at', 'deadline', 'attempts', 'worker',
  'metadata', 'result', 'error', 'owner', 'lane', 'waiters' } -- as CHANGING of tasks/records/job.py
local TOLD_BYTES = 4096 -- of texts in a record: Redis keeps what a gateway has not read yet, 32 MB at most

-- What a waiting gateway would read at once of a job that has ended; nothing where that is long.
local function told_record(job, result, failure)
  if job.waiters == '' or job.watched ~= '' or #result + #failure + #job.metadata > TOLD_BYTES then return nil end
  local record = {}
  for i, value in ipairs(redis.call('HMGET', P .. 'job:' .. job.id, unpack(TOLD))) do record[TOLD[i]] = value or nil end
  return cjson.encode(record)
end

-- The one way into a terminal status; callers have checked that the job is not in one. tokens: of prompt and
-- answer, none unless given; then names and values of further fields.
local function close(job, status, result, failure, ttl_ms, tokens, ...)
  leave_lists(job)
  if job.deadline then redis.call('ZREM', P .. 'deadlines', job.id) end
  local more = #result + #failure - (tonumber(job.reserved) or 0)
  if job.stored ~= '' then count_bytes(job.owner, more) end -- one of an earlier release is not counted
  move(job, status, 'finished_at', int(NOW), 'result', result, 'error', failure,
    'stored', job.stored == '' and '' or int(job.stored + more), ...)
  redis.call('HINCRBY', P .. 'ended', status, 1)
  settle_quota(job, tokens or 0)
  if job.watched ~= '' then redis.call('DEL', P .. 'text:' .. job.id) end
  if job.batch == '' then
    redis.call('ZADD', P .. 'expiry', int(NOW + (tonumber(job.keep_ms) or ttl_ms)), job.id)
  else -- it stays until its batch has the result
    local batch = P .. 'batch:' .. job.batch
    redis.call('SREM', batch .. ':live', job.id)
    redis.call('RPUSH', batch .. ':ended', job.id)
    redis.call('HINCRBY', batch, status == 'succeeded' and 'completed' or 'failed', 1)
  end
  if job.webhook ~= '' then
    announce(job.id, job.owner, job.webhook, status, { 'metadata', job.metadata, 'error', failure, 'result', result })
  end
  tell(job, told_record(job, result, failure))
  remove_in_flight(job) -- the last, as it may send another job
end

local function cancel(job, ttl_ms)
  if job.status == 'queued' then
    close(job, 'cancelled', '', '', ttl_ms)
  elseif job.status == 'running' then
    redis.call('HSET', P .. 'job:' .. job.id, 'cancel_requested', int(NOW))
  end
end

local function requeue(job, attempts)
  leave_lists(job)
  move(job, 'queued', 'attempts', int(attempts), 'enqueued_at', int(NOW), 'worker', '', 'uncounted', '')
  if job.deadline then redis.call('ZADD', P .. 'deadlines', int(job.deadline), job.id) end
  send(job)
  notify_subscribers(job)
end

-- Ends a live job that must not run (again): cancelled, past its deadline, out of attempts.
local function close_if_not_runnable(job, max_attempts, ttl_ms)
  if job.cancel_requested ~= '' then
    close(job, 'cancelled', '', '', ttl_ms)
  elseif job.deadline and job.deadline <= NOW then
    close(job, 'expired', '', '', ttl_ms)
  elseif job.attempts >= max_attempts then
    close(job, 'failed', '', cjson.encode({
      code = 'worker_lost',
      message = 'the worker was lost ' .. int(job.attempts) .. ' times while running this job',
      param = cjson.null,
    }), ttl_ms)
  else
    return false
  end
  return true
end
