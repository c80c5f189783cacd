-- needs: base, idempotency, job_records, queues, quotas
-- ARGV: an object, then each job's request, and of jobs that are made together what their requests have in common and
--       each of their prompts. All of these texts are JSON objects, which joined are the whole requests.
--       priority, model ('' for none), metadata (as JSON), deadline_ms, owner, streaming (a client reads its text), waiter
--       (the gateway where somebody waits, '' for none), traceparent,
--       keep_ms (how long the records are kept when that is not the usual time), webhook (JSON of url, to and events),
--       max_tokens (most of each answer), reserved_bytes (for each result), idempotency_key ('' for none), body_hash,
--       idempotency_ttl_ms; max_queued jobs in all, max_stored_bytes of an owner;
--       jobs: of each its id, size (of the prompt, as Flower shows it) and prompt (its place among the prompts, '' for none)
-- Makes all of the jobs or none, and sends the messages of those that their owner's share allows now. Returns 'created' with
-- ms of now and the model queue; 'existing' with the record; 'conflict' with the id of the other job; or what is full
-- with its limit and ms until it has capacity, 0 for unknown: 'queue' | 'jobs' | 'tokens' | 'storage'.
local args = cjson.decode(ARGV[1])
local jobs = args.jobs
local id = jobs[1].id
local earlier = idempotent('job', args.idempotency_key, args.body_hash)
if earlier then return earlier end

-- A client that lost the reply of its first call asks again with the same ids.
if redis.call('EXISTS', P .. 'job:' .. id) == 1 then
  if #jobs == 1 then return { 'existing', redis.call('HGETALL', P .. 'job:' .. id) } end
  return { 'created', unpack(redis.call('HMGET', P .. 'job:' .. id, 'created_at', 'lane')) }
end

local priority, owner, tokens = args.priority, args.owner, args.max_tokens
if redis.call('ZCARD', P .. 'status:queued') + #jobs > args.max_queued then
  return { 'queue', { int(args.max_queued), 0 } }
end
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
local webhook, key_bytes = args.webhook or '', #args.idempotency_key
local further = args.reserved_bytes + #webhook + (key_bytes > 0 and NOTE_BYTES + 2 * key_bytes or 0)
local common = ARGV[#jobs + 2]
local shared, shared_bytes = common and P .. 'shared:' .. id, 0
if shared then
  shared_bytes = JOB_BYTES
  for i = #jobs + 2, #ARGV do shared_bytes = shared_bytes + #ARGV[i] end
end
local bytes = shared_bytes
for i, job in ipairs(jobs) do bytes = bytes + further + job_bytes(ARGV[i + 1], args.metadata, job.size) end
local full = storage_full(owner, bytes, args.max_stored_bytes)
if full then return full end

if shared then
  redis.call('HSET', shared, 'rest', common, 'stored', int(shared_bytes))
  for i = #jobs + 3, #ARGV do redis.call('HSET', shared, int(i - #jobs - 2), ARGV[i]) end
  count_bytes(owner, shared_bytes)
end

local model_queue = model_queue_of(args.model)
local capacity = capacity_of(priority, model_queue)

-- Fields that all of the jobs have alike.
local alike = { 'model', args.model, 'lane', model_queue, 'reserved', int(args.reserved_bytes) }
local function add_field(name, value)
  table.insert(alike, name)
  table.insert(alike, value)
end
if keyed(owner) then add_field('seat', 1) end
if shared then add_field('shared', id) end
if args.streaming then add_field('watched', 1) end
if (args.waiter or '') ~= '' then add_field('waiters', args.waiter) end
if args.traceparent ~= '' then add_field('traceparent', args.traceparent) end
if args.keep_ms then add_field('keep_ms', int(args.keep_ms)) end
if webhook ~= '' then add_field('webhook', webhook) end

local function create(job, request)
  local deferred = capacity and (has_deferred(priority, model_queue) or in_flight(priority, model_queue) >= capacity)
  local fields = reserve_quota(owner, tokens)
  for _, value in ipairs(alike) do table.insert(fields, value) end
  for _, value in ipairs(deferred and {} or { 'counted', 1 }) do table.insert(fields, value) end
  if shared then
    local shared_by_it = #common + redis.call('HSTRLEN', shared, job.prompt)
    for _, value in ipairs({ 'prompt_part', job.prompt, 'shared_bytes', int(shared_by_it) }) do table.insert(fields, value) end
    redis.call('SADD', shared .. ':jobs', job.id)
  end
  local seq = add_job(job.id, priority, owner, request, args.metadata, args.deadline_ms and int(args.deadline_ms) or '',
    job.size, further, unpack(fields))
  if keyed(owner) then redis.call('HINCRBY', P .. 'live', owner, 1) end
  if deferred then
    local held = counts_key('held', priority)
    redis.call('ZADD', held .. ':' .. account(owner, model_queue), seq, job.id)
    redis.call('HINCRBY', held, account(owner, model_queue), 1)
    if priority == 'bulk' then wake() end -- an interactive one is sent by the script that ends another
    return
  end
  add_in_flight(priority, owner, model_queue)
  send({ id = job.id, priority = priority, lane = model_queue, size = job.size })
end

for i, job in ipairs(jobs) do create(job, ARGV[i + 1]) end
note_key('job', args.idempotency_key, args.body_hash, id, int(args.idempotency_ttl_ms))
return { 'created', int(NOW), model_queue }
