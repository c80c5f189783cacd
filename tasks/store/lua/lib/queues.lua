-- needs: base
-- Where queued jobs wait, and how many jobs of each owner are sent.
--
-- pending:PRIORITY[:MODEL]   queued jobs: id -> when their message was last sent. The model queue is that of MODEL,
--                       or '', from which every worker takes jobs
-- lanes                 set of models that may have queued jobs
-- models, announced     models that workers have served: name -> when last, ms; set of those that are to be
--                       started when they are asked for, as long as announced:NAME is there
-- held:ACCOUNT          deferred jobs: queued bulk jobs whose message is not sent until their owner's share allows
--                       it. An account is OWNER, or OWNER@MODEL: an owner has a share of each model queue
-- held                  account -> how many deferred bulk jobs it has
-- outstanding           bulk jobs in flight, sent and not ended: account -> how many
-- interactive_held:ACCOUNT, interactive_held, interactive_outstanding    the same of interactive jobs
-- claimed:PRIORITY[:MODEL]   when the newest message claimed so far was sent

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
local function model_queue_of(model)
  return model ~= '' and known(model) and model or ''
end

local function queue_key(name, priority, model_queue)
  return P .. name .. ':' .. priority .. (model_queue == '' and '' or ':' .. model_queue)
end

local function account(owner, model_queue)
  return model_queue == '' and owner or owner .. '@' .. model_queue
end

local function model_queue_of_account(name)
  local at = name:find('@', 1, true)
  return at and name:sub(at + 1) or ''
end

local function owner_of_account(name)
  return name:sub(1, (name:find('@', 1, true) or 0) - 1)
end

-- The key of held or outstanding for a priority.
local function counts_key(name, priority)
  return P .. (priority == 'interactive' and 'interactive_' or '') .. name
end

local function leave_lists(job)
  redis.call('ZREM', queue_key('pending', job.priority, job.lane), job.id)
  if job.lane ~= '' then redis.call('ZREM', queue_key('pending', job.priority, ''), job.id) end -- of an older release
  redis.call('ZREM', P .. 'leases', job.id)
  local of = account(job.owner, job.lane)
  local deferred = counts_key('held', job.priority)
  if redis.call('ZREM', deferred .. ':' .. of, job.id) == 1 then
    if redis.call('HINCRBY', deferred, of, -1) == 0 then redis.call('HDEL', deferred, of) end
  end
end

-- Note a queued job whose message is sent now.
local function add_pending(id, priority, model_queue)
  redis.call('ZADD', queue_key('pending', priority, model_queue), int(NOW), id)
  if model_queue ~= '' then redis.call('SADD', P .. 'lanes', model_queue) end
end

-- From now until it ends, the job counts as in flight for its owner.
local function add_in_flight(id, priority, owner, model_queue)
  redis.call('HSET', P .. 'job:' .. id, 'counted', 1)
  redis.call('HINCRBY', counts_key('outstanding', priority), account(owner, model_queue), 1)
end

local function remove_in_flight(job)
  if job.counted == '' then return end
  local of, counts = account(job.owner, job.lane), counts_key('outstanding', job.priority)
  if redis.call('HINCRBY', counts, of, -1) <= 0 then redis.call('HDEL', counts, of) end
  if job.priority == 'bulk' or redis.call('EXISTS', P .. 'interactive_held') == 1 then wake() end
end

-- Jobs in flight of one model queue, or of all.
local function in_flight(priority, model_queue)
  local sum, counts = 0, redis.call('HGETALL', counts_key('outstanding', priority))
  for i = 1, #counts, 2 do
    if not model_queue or model_queue_of_account(counts[i]) == model_queue then sum = sum + tonumber(counts[i + 1]) end
  end
  return sum
end

local function has_deferred(priority, model_queue)
  for _, name in ipairs(redis.call('HKEYS', counts_key('held', priority))) do
    if model_queue_of_account(name) == model_queue then return true end
  end
  return false
end

-- Assign a job to the queue of the model that it asks for.
local function move_to_model_queue(job, model_queue)
  remove_in_flight(job)
  job.lane = model_queue
  redis.call('HSET', P .. 'job:' .. job.id, 'lane', model_queue)
  if job.counted ~= '' then add_in_flight(job.id, job.priority, job.owner, model_queue) end
end
