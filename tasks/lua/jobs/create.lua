-- needs: base, idempotency, job_records, queues, quotas
-- ARGV: id, priority, model, request, metadata, deadline ms or '', preview,
--       idempotency key or '', body hash, idempotency ttl ms, '1' for somebody listens or '',
--       how long the record is kept when that is not the usual time, ms or '', owner, most tokens of the answer,
--       how many jobs may be queued in all, webhook as JSON of url, to and events, or '', trace context or '',
--       how many bytes an owner's records may take, bytes to reserve for each result;
--       then, of jobs that are made together, what their requests have in common or '', the number of their
--       prompts, each prompt, which of them is the first job's or '', and of each further job its id, request,
--       preview and prompt. All of that is JSON objects, which joined are the whole requests.
-- Makes all of the jobs or none. Returns 'created' with ms of now, the lane, and of each job '1' if its message must be
-- sent by the caller, or '' if its owner's share does not allow it yet; 'existing' with the record; 'conflict' with
-- the id of the other job; or what is full with its limit and ms until it has room, 0 for unknown:
-- 'queue' | 'jobs' | 'tokens' | 'storage'.
local id = ARGV[1]
local earlier = idempotent('job', ARGV[8], ARGV[9])
if earlier then return earlier end

local prompts = tonumber(ARGV[21])
local jobs = { { id = id, request = ARGV[4], preview = ARGV[7], part = ARGV[22 + prompts] } }
for i = 23 + prompts, #ARGV, 4 do
  table.insert(jobs, { id = ARGV[i], request = ARGV[i + 1], preview = ARGV[i + 2], part = ARGV[i + 3] })
end

-- A client that lost the reply of its first call asks again with the same ids.
if redis.call('EXISTS', P .. 'job:' .. id) == 1 then
  if #jobs == 1 then return { 'existing', redis.call('HGETALL', P .. 'job:' .. id) } end
  local made = redis.call('HMGET', P .. 'job:' .. id, 'created_at', 'lane')
  local answer = { 'created', made[1], made[2] }
  for _, job in ipairs(jobs) do
    table.insert(answer, redis.call('ZSCORE', queue_key('pending', ARGV[2], made[2]), job.id) and '1' or '')
  end
  return answer
end

local priority, owner, tokens = ARGV[2], ARGV[13], tonumber(ARGV[14])
if redis.call('ZCARD', P .. 'status:queued') + #jobs > tonumber(ARGV[15]) then return { 'queue', { ARGV[15], 0 } } end
if keyed(owner) then
  local limits = redis.call('HMGET', P .. 'key:' .. owner, 'max_jobs', 'tokens_per_day')
  local most_jobs, most_tokens = tonumber(limits[1] or ''), tonumber(limits[2] or '')
  if most_jobs and tonumber(redis.call('HGET', P .. 'live', owner) or '0') + #jobs > most_jobs then
    return { 'jobs', { int(most_jobs), 0 } }
  end
  local spent, _, ends = spent_today(owner)
  if most_tokens and spent + tokens * #jobs > most_tokens then
    return { 'tokens', { int(most_tokens), int(ends - NOW) } }
  end
end

-- What a job takes that add_job does not know of: the trace context has a fixed length, and is in JOB_BYTES.
local reserved = tonumber(ARGV[19])
local further = reserved + #ARGV[16] + (ARGV[8] ~= '' and NOTE_BYTES + 2 * #ARGV[8] or 0)
local shared, shared_bytes = ARGV[20] ~= '' and P .. 'shared:' .. id, 0
if shared then
  shared_bytes = JOB_BYTES + #ARGV[20]
  for place = 1, prompts do shared_bytes = shared_bytes + #ARGV[21 + place] end
end
local bytes = shared_bytes
for _, job in ipairs(jobs) do bytes = bytes + further + job_bytes(job.request, ARGV[5], job.preview) end
local full = storage_full(owner, bytes, ARGV[18])
if full then return full end

if shared then
  redis.call('HSET', shared, 'rest', ARGV[20], 'stored', int(shared_bytes))
  for place = 1, prompts do redis.call('HSET', shared, int(place), ARGV[21 + place]) end
  count_bytes(owner, shared_bytes)
end

local lane = lane_of(ARGV[3])
local room = priority == 'bulk' and tonumber(redis.call('GET', P .. 'bulk_room') or '')

local function create(job)
  local key = P .. 'job:' .. job.id
  local seq = add_job(job.id, priority, owner, job.request, ARGV[5], ARGV[6], job.preview, 'model', ARGV[3], 'lane',
    lane, unpack(reserve_quota(owner, tokens)))
  redis.call('HSET', key, 'reserved', int(reserved))
  resize(key, owner, further)
  if shared then
    local bytes = #ARGV[20] + redis.call('HSTRLEN', shared, job.part)
    redis.call('HSET', key, 'shared', id, 'prompt_part', job.part, 'shared_bytes', int(bytes))
    redis.call('SADD', shared .. ':jobs', job.id)
  end
  if keyed(owner) then
    redis.call('HSET', key, 'seat', 1)
    redis.call('HINCRBY', P .. 'live', owner, 1)
  end
  if ARGV[11] ~= '' then redis.call('HSET', key, 'watched', ARGV[11]) end
  if ARGV[17] ~= '' then redis.call('HSET', key, 'traceparent', ARGV[17]) end
  if ARGV[12] ~= '' then redis.call('HSET', key, 'keep_ms', ARGV[12]) end
  if ARGV[16] ~= '' then redis.call('HSET', key, 'webhook', ARGV[16]) end
  if room and (holds(lane) or outstanding(lane) >= room) then
    redis.call('ZADD', P .. 'held:' .. account(owner, lane), seq, job.id)
    redis.call('HINCRBY', P .. 'held', account(owner, lane), 1)
    wake()
    return ''
  end
  wait_in_queue(job.id, priority, lane)
  if priority == 'bulk' then count_in(job.id, owner, lane) end
  return '1'
end

local answer = { 'created', int(NOW), lane }
for _, job in ipairs(jobs) do table.insert(answer, create(job)) end
note_key('job', ARGV[8], ARGV[9], id, ARGV[10])
return answer
