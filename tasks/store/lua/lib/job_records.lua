-- needs: base, idempotency, jobs, quotas
-- The first and the last of a job: its record and its places in the indexes.
--
-- shared:ID hash        what requests have in common whose jobs were made together, as JSON objects: 'rest' of all of
--                       them, and '1', '2', ... of those with the same prompt; shared:ID:jobs set of jobs that refer to it

local function metadata_bytes(metadata)
  local bytes = #metadata
  for _, index in ipairs(meta_indexes(metadata)) do bytes = bytes + 2 * (PAIR_BYTES + #index) end -- in two scopes
  return bytes
end

local function job_bytes(request, metadata, size)
  return JOB_BYTES + #request + #size + metadata_bytes(metadata)
end

-- The record of a new job and its place in the lists; its message is not sent yet. further: bytes that it takes
-- beside these texts; then names and values of further fields.
local function add_job(id, priority, owner, request, metadata, deadline, size, further, ...)
  local seq = redis.call('INCR', P .. 'seq')
  local bytes = job_bytes(request, metadata, size) + further
  count_bytes(owner, bytes)
  redis.call('HSET', P .. 'job:' .. id, 'stored', int(bytes), 'id', id, 'status', 'queued', 'seq', seq, 'priority', priority,
    'owner', owner, 'request', request, 'metadata', metadata, 'deadline', deadline, 'size', size,
    'created_at', int(NOW), 'enqueued_at', int(NOW), 'attempts', 0, 'fence', 0, ...)
  if deadline ~= '' then redis.call('ZADD', P .. 'deadlines', deadline, id) end
  for _, scope in ipairs(scopes(owner)) do
    redis.call('ZADD', scope .. 'jobs', seq, id)
    redis.call('ZADD', scope .. 'status:queued', seq, id)
    for _, index in ipairs(meta_indexes(metadata)) do redis.call('ZADD', scope .. index, seq, id) end
  end
  return seq
end

-- A job that is dropped no longer refers to what its request shares with others; with the last one that goes too.
local function release_shared(job)
  if job.shared == '' then return end
  local key = P .. 'shared:' .. job.shared
  redis.call('SREM', key .. ':jobs', job.id)
  if redis.call('EXISTS', key .. ':jobs') == 0 then
    count_bytes(job.owner, -tonumber(redis.call('HGET', key, 'stored') or '0'))
    redis.call('DEL', key)
  end
end

-- Drop a job that has ended, and so is in no list of live ones.
local function forget(job)
  redis.call('ZREM', P .. 'expiry', job.id)
  for _, scope in ipairs(scopes(job.owner)) do
    redis.call('ZREM', scope .. 'jobs', job.id)
    redis.call('ZREM', scope .. 'status:' .. job.status, job.id)
    for _, index in ipairs(meta_indexes(job.metadata)) do redis.call('ZREM', scope .. index, job.id) end
  end
  release_shared(job)
  count_bytes(job.owner, -(tonumber(job.stored) or 0))
  forget_note('job', job.note, job.id)
  redis.call('DEL', P .. 'job:' .. job.id)
end
