-- Put before every script. KEYS[1] is the key prefix of this installation; the other keys are made
-- from it, so this runs on one Redis, not on a cluster. The only clock is that of Redis, in ms.
--
-- job:ID hash           the record
-- shared:ID hash        what requests have in common whose jobs were made together, as JSON objects: 'rest' of all of
--                       them, and '1', '2', ... of those with the same prompt; shared:ID:jobs set of jobs that refer to it
-- jobs, status:S, meta:K=V   indexes: id -> sequence number, for listing newest first
-- pending:PRIORITY[:LANE]    queued jobs: id -> when their message was last sent. A lane is the model whose
--                       queue that is, '' of the queue that every worker takes jobs from
-- lanes                 set of models that may have some
-- models, announced     models that workers have served: name -> when last, ms; set of those that are to be
--                       started when they are asked for, as long as announced:NAME is there
-- held:ACCOUNT          queued bulk jobs whose message waits until their owner's share allows it. An account is
--                       OWNER, or OWNER@LANE: of each model, an owner has a share of its own
-- held                  accounts that have some: account -> how many
-- outstanding           bulk jobs sent and not ended: account -> how many
-- bulk_room             how many of a lane may be, as long as somebody leads who sends the held ones
-- batch:ID hash         a batch; batch:ID:live its jobs that have not ended, batch:ID:ended those that have
--                       and whose results are not collected yet, batch:ID:parts names of the parts of those that
--                       are, batch:ID:codes why lines failed -> how many
-- batches, batches:active    id -> sequence number; those that somebody must still work on
-- batches:expiry        ended batches: id -> when the record is dropped
-- batches:cleanup       set of batches of which nothing must stay in the file store but their output files
-- leader                who works on batches; gone when it was silent for LEAD_MS
-- led_by                who worked on them last: it leads on, unless another takes over
-- claimed:PRIORITY[:LANE]    when the newest message claimed so far was sent
-- leases, deadlines     id -> when the lease of a running job, or the time of a live one, runs out
-- expiry                ended jobs: id -> when the record is dropped
-- keys hash             SHA-256 of an API key -> its id, of those that stand
-- key_ids list          ids of all keys ever made, in their order
-- key:ID hash           a key and its limits; its id is the owner of what it makes
-- owner:KEY:jobs, :batches, :files, :files:PURPOSE   indexes of what a key has: id -> sequence number
-- owner:KEY:rate        when all requests of its minute are free again, ms
-- owner:KEY:tokens:DAY  what it has spent, and what is set aside for jobs that have not ended
-- live                  jobs of a key, without lines of batches, that have not ended: key id -> how many
-- live_batches          batches of a key that have not ended: key id -> how many
-- ended                 status -> how many jobs have ended in it, ever
-- text:ID               the text so far of a watched job that runs
-- events                channel: "ID STATUS" when a job ends, and at each change of a watched one
-- tokens                channel: the parts of the text of watched jobs, as JSON
-- wake                  channel: there is something to send or to collect
--
-- file:ID hash          a file, whose object is whole
-- files, files:PURPOSE  indexes: id -> sequence number
-- file_uses:ID          set of the batches under way that read it: it is kept as long as there is one
-- file_expiry           files that expire: id -> when
-- file_begun            objects being written: id -> until when their writer is believed alive
-- file_garbage          objects without a record: id -> when to remove them (again)
--
-- file_counts, file_bytes   owner -> how many files it has, and their bytes together, with those being uploaded and the
--                       inputs of its live batches, of which there is a copy
-- stored_bytes          owner -> bytes that its jobs, batches and deliveries take here; each record has its own as `stored`
-- file_reserved         object being uploaded -> 'BYTES OWNER', counted until it is a file or gone
--
-- (those of webhooks are in outbox.lua)
--
-- idem:KIND:KEY hash    the job, batch or file, and the hash of the body, that came with an idempotency key
-- seq, file_seq         the last sequence numbers given
-- figures, figures:WORKER    workers that left figures for Prometheus, and the figures of each
-- reconciled_at, grace_since    when the reconciler last looked, and, after a gap, since when leases that ran out are
--                       spared for a while

local P = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
local LEAD_MS = 5000 -- a leader that is silent so long may be replaced
local DAY_MS = 24 * 3600 * 1000
-- What records take beside the texts in them, measured; of metadata each pair is in an index as well.
local JOB_BYTES, BATCH_BYTES, HOOK_BYTES, NOTE_BYTES, PAIR_BYTES = 2500, 4000, 2000, 350, 150
local TERMINAL = { succeeded = true, failed = true, cancelled = true, expired = true }
local FIELDS = { 'id', 'status', 'seq', 'priority', 'fence', 'attempts', 'lease_until', 'cancel_requested',
  'deadline', 'enqueued_at', 'claim_token', 'written_fence', 'metadata', 'preview', 'owner', 'batch',
  'counted', 'watched', 'keep_ms', 'set_aside', 'spent_in', 'seat', 'webhook', 'uncounted', 'lane', 'shared', 'note',
  'stored', 'reserved' }
local NUMBERS = { 'seq', 'fence', 'attempts', 'lease_until', 'deadline', 'enqueued_at', 'written_fence' }

local announce -- in outbox.lua

local function int(number)
  return string.format('%.0f', number)
end

-- Owners are ids of keys, or nobody in particular where no keys are used.
local function keyed(owner)
  return owner:sub(1, 4) == 'key_'
end

-- What a key has spent today, with what is set aside; the name of the counter, and when its day ends, in ms.
local function spent_today(owner)
  local day = math.floor(NOW / DAY_MS)
  local counter = P .. 'owner:' .. owner .. ':tokens:' .. int(day)
  return tonumber(redis.call('GET', counter) or '0'), counter, (day + 1) * DAY_MS
end

-- A limit that a key may have of its own; usual: of all owners that have none.
local function limit_of(owner, name, usual)
  return keyed(owner) and tonumber(redis.call('HGET', P .. 'key:' .. owner, name) or '') or tonumber(usual)
end

local function add_to(counts, owner, number)
  if redis.call('HINCRBY', P .. counts, owner, int(number + 0)) <= 0 then redis.call('HDEL', P .. counts, owner) end
end

-- Work without an owner is counted nowhere.
local function count_bytes(owner, bytes)
  if owner ~= '' then add_to('stored_bytes', owner, bytes) end
end

-- A record takes so many bytes more, or less. One of an earlier release is not counted.
local function resize(key, owner, bytes)
  if redis.call('HEXISTS', key, 'stored') == 0 then return end
  redis.call('HINCRBY', key, 'stored', int(bytes + 0))
  count_bytes(owner, bytes)
end

-- Whether an owner's records may not take so many bytes more: for the caller's answer, or nil.
local function storage_full(owner, bytes, usual)
  local most = limit_of(owner, 'max_stored_bytes', usual)
  local held = tonumber(redis.call('HGET', P .. 'stored_bytes', owner) or '0')
  return held + bytes > most and { 'storage', { int(most), 0 } } or nil
end

local function metadata_bytes(metadata)
  local bytes = 2 * #metadata
  for _ in pairs(cjson.decode(metadata)) do bytes = bytes + PAIR_BYTES end
  return bytes
end

local function job_bytes(request, metadata, preview)
  return JOB_BYTES + #request + #preview + metadata_bytes(metadata)
end

local function count_files(owner, files, bytes)
  if owner == '' then return end
  add_to('file_counts', owner, files)
  add_to('file_bytes', owner, bytes)
end

-- Why an owner may not have so many files more, with so many bytes together: for the caller's answer, or nil.
local function files_full(owner, files, bytes, usual_files, usual_bytes)
  local most_files, most_bytes = limit_of(owner, 'max_files', usual_files), limit_of(owner, 'max_files_bytes', usual_bytes)
  local count = tonumber(redis.call('HGET', P .. 'file_counts', owner) or '0')
  local held = tonumber(redis.call('HGET', P .. 'file_bytes', owner) or '0')
  if count + files <= most_files and held + bytes <= most_bytes then return nil end
  return { 'files', { int(count), int(held), int(bytes), int(most_files), int(most_bytes) } }
end

local function release_file(id)
  local bytes, owner = (redis.call('HGET', P .. 'file_reserved', id) or ''):match('^(%d+) (.*)$')
  if not bytes then return end
  redis.call('HDEL', P .. 'file_reserved', id)
  count_files(owner, -1, -tonumber(bytes))
end

-- Set tokens aside for a new job, until its end says what it took: fields for its record.
local function set_aside(owner, tokens)
  if not keyed(owner) then return {} end
  local _, counter = spent_today(owner)
  redis.call('INCRBY', counter, tokens)
  redis.call('PEXPIRE', counter, 2 * DAY_MS)
  return { 'set_aside', tokens, 'spent_in', counter }
end

-- Whether a key's tokens of today are all spent, and when the next are given, in ms.
local function is_spent(owner)
  local limit = keyed(owner) and tonumber(redis.call('HGET', P .. 'key:' .. owner, 'tokens_per_day') or '')
  if not limit then return false end
  local spent, _, ends = spent_today(owner)
  return spent >= limit, ends
end

-- Whether the holder of the token works on batches, and renews its lead: being slow costs it nothing unless
-- another has taken over.
local function leads(token)
  if redis.call('GET', P .. 'led_by') ~= token then return false end
  redis.call('SET', P .. 'leader', token, 'PX', LEAD_MS)
  redis.call('PEXPIRE', P .. 'bulk_room', LEAD_MS)
  return true
end

-- Whether jobs may wait for a model that no worker serves at the moment.
local function known(model)
  return redis.call('ZSCORE', P .. 'models', model) and true or redis.call('EXISTS', P .. 'announced:' .. model) == 1
end

local function all_known()
  local names = redis.call('ZRANGE', P .. 'models', 0, -1)
  for _, name in ipairs(redis.call('SMEMBERS', P .. 'announced')) do
    if redis.call('EXISTS', P .. 'announced:' .. name) == 1 then table.insert(names, name) end
  end
  return names
end

-- The queue for a job that asks for this model, '' for none: any worker may say that it does not know the model.
local function lane_of(model)
  return model ~= '' and known(model) and model or ''
end

local function queue_key(name, priority, lane)
  return P .. name .. ':' .. priority .. (lane == '' and '' or ':' .. lane)
end

local function account(owner, lane)
  return lane == '' and owner or owner .. '@' .. lane
end

local function lane_of_account(name)
  local at = name:find('@', 1, true)
  return at and name:sub(at + 1) or ''
end

local function owner_of_account(name)
  return name:sub(1, (name:find('@', 1, true) or 0) - 1)
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

-- What came with an idempotency key, if there is such a record still: 'existing' with it, or 'conflict' with its
-- id for another body.
local function idempotent(kind, key, hash)
  if key == '' then return nil end
  local note = P .. 'idem:' .. kind .. ':' .. key
  local held = redis.call('HMGET', note, 'id', 'hash')
  local record = held[1] and redis.call('HGETALL', P .. kind .. ':' .. held[1]) or {}
  if #record > 0 then
    if held[2] ~= hash then return { 'conflict', held[1] } end
    return { 'existing', record }
  end
end

-- What is made now came with this key. The note goes with the record, or after its time.
local function note_key(kind, key, hash, id, ttl_ms)
  if key == '' then return end
  local note = P .. 'idem:' .. kind .. ':' .. key
  redis.call('HSET', note, 'id', id, 'hash', hash)
  redis.call('PEXPIRE', note, ttl_ms)
  redis.call('HSET', P .. kind .. ':' .. id, 'note', key)
end

local function forget_note(kind, key, id)
  if not key or key == '' then return end
  local note = P .. 'idem:' .. kind .. ':' .. key
  if redis.call('HGET', note, 'id') == id then redis.call('DEL', note) end
end

-- Whether whoever asks may know of what this owner has: who names no owner knows of everything.
local function seen(asking, owner)
  return asking == '' or asking == owner
end

local function move(job, status)
  redis.call('ZREM', P .. 'status:' .. job.status, job.id)
  redis.call('ZADD', P .. 'status:' .. status, int(job.seq), job.id)
  redis.call('HSET', P .. 'job:' .. job.id, 'status', status)
  job.status = status
end

local function tell_watchers(job)
  if job.watched ~= '' then redis.call('PUBLISH', P .. 'events', job.id .. ' ' .. job.status) end
end

local function leave_lists(job)
  redis.call('ZREM', queue_key('pending', job.priority, job.lane), job.id)
  if job.lane ~= '' then redis.call('ZREM', queue_key('pending', job.priority, ''), job.id) end -- of an older release
  redis.call('ZREM', P .. 'leases', job.id)
  local of = account(job.owner, job.lane)
  if redis.call('ZREM', P .. 'held:' .. of, job.id) == 1 then
    if redis.call('HINCRBY', P .. 'held', of, -1) == 0 then redis.call('HDEL', P .. 'held', of) end
  end
end

-- A queued job whose message is sent now.
local function wait_in_queue(id, priority, lane)
  redis.call('ZADD', queue_key('pending', priority, lane), int(NOW), id)
  if lane ~= '' then redis.call('SADD', P .. 'lanes', lane) end
end

local function wake()
  redis.call('PUBLISH', P .. 'wake', '')
end

-- A bulk job whose message is sent: from here to its end it takes one of its owner's places.
local function count_in(id, owner, lane)
  redis.call('HSET', P .. 'job:' .. id, 'counted', 1)
  redis.call('HINCRBY', P .. 'outstanding', account(owner, lane), 1)
end

local function count_out(job)
  if job.counted == '' then return end
  local of = account(job.owner, job.lane)
  if redis.call('HINCRBY', P .. 'outstanding', of, -1) <= 0 then redis.call('HDEL', P .. 'outstanding', of) end
  wake()
end

-- Of one lane, or of all.
local function outstanding(lane)
  local sum, counts = 0, redis.call('HGETALL', P .. 'outstanding')
  for i = 1, #counts, 2 do
    if not lane or lane_of_account(counts[i]) == lane then sum = sum + tonumber(counts[i + 1]) end
  end
  return sum
end

local function holds(lane)
  for _, name in ipairs(redis.call('HKEYS', P .. 'held')) do
    if lane_of_account(name) == lane then return true end
  end
  return false
end

-- A job that asks for another model than that of the queue where it was, and that is put there next.
local function change_lane(job, lane)
  count_out(job)
  job.lane = lane
  redis.call('HSET', P .. 'job:' .. job.id, 'lane', lane)
  if job.counted ~= '' then count_in(job.id, job.owner, lane) end
end

-- The record of a new job and its place in the lists; the caller decides when its message is sent.
local function add_job(id, priority, owner, request, metadata, deadline, preview, ...)
  local seq = redis.call('INCR', P .. 'seq')
  local bytes = job_bytes(request, metadata, preview)
  count_bytes(owner, bytes)
  redis.call('HSET', P .. 'job:' .. id, 'stored', int(bytes), 'id', id, 'status', 'queued', 'seq', seq, 'priority', priority,
    'owner', owner, 'request', request, 'metadata', metadata, 'deadline', deadline, 'preview', preview,
    'created_at', int(NOW), 'enqueued_at', int(NOW), 'attempts', 0, 'fence', 0, ...)
  redis.call('ZADD', P .. 'jobs', seq, id)
  if keyed(owner) then redis.call('ZADD', P .. 'owner:' .. owner .. ':jobs', seq, id) end
  redis.call('ZADD', P .. 'status:queued', seq, id)
  if deadline ~= '' then redis.call('ZADD', P .. 'deadlines', deadline, id) end
  for name, value in pairs(cjson.decode(metadata)) do
    redis.call('ZADD', meta_key(name, value), seq, id)
  end
  return seq
end

-- Something of a key has ended, which counted while it had not.
local function leave_seat(counts, seat, owner)
  if seat ~= '' and redis.call('HINCRBY', P .. counts, owner, -1) <= 0 then redis.call('HDEL', P .. counts, owner) end
end

-- What an ended job took in place of what was set aside for it, and its seat.
local function settle(job, tokens)
  if job.spent_in ~= '' and redis.call('EXISTS', job.spent_in) == 1 then
    redis.call('INCRBY', job.spent_in, int(tokens - tonumber(job.set_aside)))
  end
  leave_seat('live', job.seat, job.owner)
end

-- The one way into a terminal status; callers have checked that the job is not in one. tokens: of prompt and
-- answer, none unless given.
local function close(job, status, result, failure, ttl_ms, tokens)
  leave_lists(job)
  redis.call('ZREM', P .. 'deadlines', job.id)
  move(job, status)
  redis.call('HINCRBY', P .. 'ended', status, 1)
  redis.call('HSET', P .. 'job:' .. job.id, 'finished_at', int(NOW), 'result', result, 'error', failure)
  resize(P .. 'job:' .. job.id, job.owner, #result + #failure - (tonumber(job.reserved) or 0))
  count_out(job)
  settle(job, tokens or 0)
  redis.call('DEL', P .. 'text:' .. job.id)
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
  redis.call('PUBLISH', P .. 'events', job.id .. ' ' .. status)
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
  move(job, 'queued')
  redis.call('HSET', P .. 'job:' .. job.id, 'attempts', int(attempts), 'enqueued_at', int(NOW), 'worker', '',
    'uncounted', '')
  wait_in_queue(job.id, job.priority, job.lane)
  if job.deadline then redis.call('ZADD', P .. 'deadlines', int(job.deadline), job.id) end
  tell_watchers(job)
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

local function forget(job)
  leave_lists(job)
  redis.call('ZREM', P .. 'deadlines', job.id)
  redis.call('ZREM', P .. 'expiry', job.id)
  redis.call('ZREM', P .. 'jobs', job.id)
  redis.call('ZREM', P .. 'owner:' .. job.owner .. ':jobs', job.id)
  redis.call('ZREM', P .. 'status:' .. job.status, job.id)
  for name, value in pairs(cjson.decode(job.metadata)) do
    redis.call('ZREM', meta_key(name, value), job.id)
  end
  release_shared(job)
  count_bytes(job.owner, -(tonumber(job.stored) or 0))
  forget_note('job', job.note, job.id)
  redis.call('DEL', P .. 'job:' .. job.id)
end

-- The jobs of an index whose records are there; an id without a record is taken out of the index.
local function jobs_of(index, ids)
  local jobs = {}
  for _, id in ipairs(ids) do
    local job = load_job(id)
    if job then table.insert(jobs, job) else redis.call('ZREM', index, id) end
  end
  return jobs
end

-- Whether a batch has ended, perhaps under another leader, and nothing more may be noted of it. What a late leader
-- has written for one that was dropped is removed.
local function is_over(id)
  if redis.call('ZSCORE', P .. 'batches:active', id) then return false end
  if redis.call('EXISTS', P .. 'batch:' .. id) == 0 then redis.call('SADD', P .. 'batches:cleanup', id) end
  return true
end

-- Of an ended batch. What it may still have in the file store, written by one who was slow, goes too.
local function drop_batch(id)
  local key = P .. 'batch:' .. id
  local held = redis.call('HMGET', key, 'owner', 'note', 'stored')
  redis.call('ZREM', P .. 'owner:' .. (held[1] or '') .. ':batches', id)
  forget_note('batch', held[2], id)
  count_bytes(held[1] or '', -(tonumber(held[3] or '0')))
  redis.call('DEL', key, key .. ':codes', key .. ':parts')
  redis.call('ZREM', P .. 'batches', id)
  redis.call('ZREM', P .. 'batches:expiry', id)
  redis.call('SADD', P .. 'batches:cleanup', id)
  wake()
end

local function drop_file(id, remove_at_ms)
  local held = redis.call('HMGET', P .. 'file:' .. id, 'purpose', 'owner', 'bytes', 'counted', 'note')
  local purpose, own = held[1] or '', P .. 'owner:' .. (held[2] or '') .. ':files'
  if held[4] then count_files(held[2], -1, -tonumber(held[3])) end
  forget_note('file', held[5], id)
  redis.call('DEL', P .. 'file:' .. id)
  redis.call('ZREM', P .. 'files', id)
  redis.call('ZREM', P .. 'files:' .. purpose, id)
  redis.call('ZREM', own, id)
  redis.call('ZREM', own .. ':' .. purpose, id)
  redis.call('ZREM', P .. 'file_expiry', id)
  redis.call('ZADD', P .. 'file_garbage', int(remove_at_ms), id)
end
