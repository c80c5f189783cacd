-- Put before every script. KEYS[1] is the key prefix of this installation; the other keys are made
-- from it, so this runs on one Redis, not on a cluster. The only clock is that of Redis, in ms.
--
-- job:ID hash           the record
-- jobs, status:S, meta:K=V   indexes: id -> sequence number, for listing newest first
-- pending:PRIORITY      queued jobs: id -> when their message was last sent
-- claimed:PRIORITY      when the newest message claimed so far was sent
-- leases, deadlines     id -> when the lease of a running job, or the time of a live one, runs out
-- expiry                ended jobs: id -> when the record is dropped
-- events                channel: "ID STATUS" when a job ends

local P = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
local TERMINAL = { succeeded = true, failed = true, cancelled = true, expired = true }
local FIELDS = { 'id', 'status', 'seq', 'priority', 'fence', 'attempts', 'lease_until', 'cancel_requested',
  'deadline', 'enqueued_at', 'claim_token', 'written_fence', 'metadata', 'preview' }
local NUMBERS = { 'seq', 'fence', 'attempts', 'lease_until', 'deadline', 'enqueued_at', 'written_fence' }

local function int(number)
  return string.format('%.0f', number)
end

local function meta_key(name, value) -- the length keeps a=b / c and a / b=c apart
  return P .. 'meta:' .. #name .. ':' .. name .. '=' .. value
end

local function load_job(id)
  local values = redis.call('HMGET', P .. 'job:' .. id, unpack(FIELDS))
  if not values[1] then return nil end
  local job = {}
  for i, name in ipairs(FIELDS) do job[name] = values[i] or '' end
  for _, name in ipairs(NUMBERS) do job[name] = tonumber(job[name]) end
  return job
end

local function move(job, status)
  redis.call('ZREM', P .. 'status:' .. job.status, job.id)
  redis.call('ZADD', P .. 'status:' .. status, int(job.seq), job.id)
  redis.call('HSET', P .. 'job:' .. job.id, 'status', status)
  job.status = status
end

local function leave_lists(job)
  redis.call('ZREM', P .. 'pending:' .. job.priority, job.id)
  redis.call('ZREM', P .. 'leases', job.id)
end

-- The one way into a terminal status; callers have checked that the job is not in one.
local function close(job, status, result, failure, ttl_ms)
  leave_lists(job)
  redis.call('ZREM', P .. 'deadlines', job.id)
  move(job, status)
  redis.call('HSET', P .. 'job:' .. job.id, 'finished_at', int(NOW), 'result', result, 'error', failure)
  redis.call('ZADD', P .. 'expiry', int(NOW + ttl_ms), job.id)
  redis.call('PUBLISH', P .. 'events', job.id .. ' ' .. status)
end

local function requeue(job, attempts)
  leave_lists(job)
  move(job, 'queued')
  redis.call('HSET', P .. 'job:' .. job.id, 'attempts', int(attempts), 'enqueued_at', int(NOW), 'worker', '')
  redis.call('ZADD', P .. 'pending:' .. job.priority, int(NOW), job.id)
  if job.deadline then redis.call('ZADD', P .. 'deadlines', int(job.deadline), job.id) end
end

-- Ends a live job that must not run (again): cancelled, past its deadline, out of attempts.
local function closed_before_run(job, max_attempts, ttl_ms)
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

local function forget(job)
  leave_lists(job)
  redis.call('ZREM', P .. 'deadlines', job.id)
  redis.call('ZREM', P .. 'expiry', job.id)
  redis.call('ZREM', P .. 'jobs', job.id)
  redis.call('ZREM', P .. 'status:' .. job.status, job.id)
  for name, value in pairs(cjson.decode(job.metadata)) do
    redis.call('ZREM', meta_key(name, value), job.id)
  end
  redis.call('DEL', P .. 'job:' .. job.id)
end
