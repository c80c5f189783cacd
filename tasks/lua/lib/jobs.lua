-- needs: base
-- Reading the records of jobs.
--
-- job:ID hash           the record
-- jobs, status:S, meta:K=V   indexes: id -> sequence number, for listing newest first
-- owner:KEY:jobs        the same of what a key has

local TERMINAL = { succeeded = true, failed = true, cancelled = true, expired = true }
local FIELDS = { 'id', 'status', 'seq', 'priority', 'fence', 'attempts', 'lease_until', 'cancel_requested',
  'deadline', 'enqueued_at', 'claim_token', 'written_fence', 'metadata', 'preview', 'owner', 'batch',
  'counted', 'watched', 'keep_ms', 'set_aside', 'spent_in', 'seat', 'webhook', 'uncounted', 'lane', 'shared', 'note',
  'stored', 'reserved' }
local NUMBERS = { 'seq', 'fence', 'attempts', 'lease_until', 'deadline', 'enqueued_at', 'written_fence' }

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

-- The jobs of an index whose records are there; an id without a record is taken out of the index.
local function jobs_of(index, ids)
  local jobs = {}
  for _, id in ipairs(ids) do
    local job = load_job(id)
    if job then table.insert(jobs, job) else redis.call('ZREM', index, id) end
  end
  return jobs
end
