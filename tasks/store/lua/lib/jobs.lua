-- needs: base
-- Reading the records of jobs.
--
-- job:ID hash           the record
-- jobs, status:S, meta:N:K=V   indexes: id -> sequence number, for listing newest first
-- owner:KEY:jobs, owner:KEY:status:S, owner:KEY:meta:N:K=V   the same of what a key has

local TERMINAL = { succeeded = true, failed = true, cancelled = true, expired = true }
local FIELDS = { 'id', 'status', 'seq', 'priority', 'fence', 'attempts', 'lease_until', 'cancel_requested',
  'deadline', 'enqueued_at', 'claim_token', 'written_fence', 'metadata', 'size', 'owner', 'batch',
  'counted', 'watched', 'keep_ms', 'set_aside', 'spent_in', 'seat', 'webhook', 'uncounted', 'lane', 'shared', 'note',
  'stored', 'reserved', 'waiters', 'model' }
local NUMBERS = { 'seq', 'fence', 'attempts', 'lease_until', 'deadline', 'enqueued_at', 'written_fence' }

-- Before the names of the indexes that a job of this owner is in: those of all jobs, and those of its key.
local function scopes(owner)
  return keyed(owner) and { P, P .. 'owner:' .. owner .. ':' } or { P }
end

local SHORT_VALUE = 64 -- bytes: of a longer value the name of its index holds the digest

local function meta_index(name, value) -- the length keeps a=b / c and a / b=c apart
  return 'meta:' .. #name .. ':' .. name .. (#value > SHORT_VALUE and '#' .. redis.sha1hex(value) or '=' .. value)
end

-- Of the metadata of a job, as JSON; what jobs have in common that are made together is read once.
local meta_known = {}
local function meta_indexes(metadata)
  if not meta_known[metadata] then
    local names = {}
    for name, value in pairs(cjson.decode(metadata)) do table.insert(names, meta_index(name, value)) end
    meta_known[metadata] = names
  end
  return meta_known[metadata]
end

local function load_job(id)
  local values = redis.call('HMGET', P .. 'job:' .. id, unpack(FIELDS))
  if not values[1] then return nil end
  local job = {}
  for i, name in ipairs(FIELDS) do job[name] = values[i] or '' end
  for _, name in ipairs(NUMBERS) do job[name] = tonumber(job[name]) end
  return job
end

-- Iterates over the jobs of an index whose records are there, each as it is when its turn comes: the end of one may
-- send another. An id without a record is taken out of the index.
local function jobs_of(index, ids)
  local place = 0
  return function()
    while place < #ids do
      place = place + 1
      local job = load_job(ids[place])
      if job then return job end
      redis.call('ZREM', index, ids[place])
    end
  end
end
