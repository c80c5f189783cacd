-- needs: base, jobs
-- Where queued jobs and windows wait, the Celery messages that name them, and how many of each owner are sent.
--
-- pending:PRIORITY[:MODEL]   queued jobs: id -> when their message was last sent. The model queue is that of MODEL,
--                       or '', from which every worker takes jobs. The PRIORITY of windows is 'windows', in all of these
-- lanes                 set of models that may have queued jobs
-- models, announced     models that workers have served: name -> when last, ms; set of those that are to be
--                       started when they are asked for, as long as announced:NAME is there
-- held:ACCOUNT          deferred jobs: queued bulk jobs whose message is not sent until their owner's share allows
--                       it. An account is OWNER, or OWNER@MODEL: an owner has a share of each model queue
-- held                  account -> how many deferred bulk jobs it has
-- outstanding           bulk jobs and lines of windows in flight, sent and not ended: account -> how many
-- interactive_held:ACCOUNT, interactive_held, interactive_outstanding    the same of interactive jobs
-- claimed:PRIORITY[:MODEL]   when the newest message claimed so far was sent
-- medusaq.PRIORITY[.MODEL]   list: the messages of a queue, as kombu keeps them; MODEL is percent-encoded
-- KEYS[2]               channel: the events by which Flower hears of messages

-- Names of tasks; part of the wire format, as the names of the queues are.
local TASKS = { interactive = 'medusaq.generate', bulk = 'medusaq.generate', windows = 'medusaq.window' }
-- Both as Celery writes them, but for the body, which kombu takes as plain text too. The test compares them.
local MESSAGE = '{"body":"[[\\"%s\\"],{},{\\"callbacks\\":null,\\"errbacks\\":null,\\"chain\\":null,\\"chord\\":null}]",' ..
  '"content-encoding":"utf-8","content-type":"application/json","headers":{"lang":"py","task":"%s","id":"%s",' ..
  '"shadow":null,"eta":null,"expires":null,"group":null,"group_index":null,"retries":0,"timelimit":[null,null],' ..
  '"root_id":"%s","parent_id":null,"argsrepr":%s,"kwargsrepr":"{}","origin":"medusaq","ignore_result":true,' ..
  '"replaced_task_nesting":0,"stamped_headers":null,"stamps":{}},"properties":{"correlation_id":"%s","delivery_mode":2,' ..
  '"delivery_info":{"exchange":"","routing_key":"%s"},"priority":0,"delivery_tag":"%s"}}'
local EVENT = '{"type":"task-sent","hostname":"medusaq","uuid":"%s","root_id":"%s","parent_id":null,"name":"%s",' ..
  '"args":%s,"kwargs":"{}","retries":0,"eta":null,"expires":null,"queue":"%s","exchange":"","routing_key":"%s",' ..
  '"timestamp":%s}'
local EVENT_MESSAGE = '{"body":%s,"content-encoding":"utf-8","content-type":"application/json","headers":' ..
  '{"hostname":"medusaq"},"properties":{"delivery_mode":1,"delivery_info":{"exchange":"celeryev","routing_key":"task.sent"},' ..
  '"priority":0,"delivery_tag":"%s"}}'

local function queue_name(priority, model_queue)
  local name = 'medusaq.' .. priority
  if model_queue == '' then return name end
  return name .. '.' .. model_queue:gsub('[^%w_.~-]', function(byte) return ('%%%02X'):format(byte:byte()) end)
end

-- job: its id, priority, lane, and what Flower shows, which has no quotes: the size of a job's prompt, the preview of a
-- window. What fails here fails alone: the job is noted as pending, and the reconciler sends its message again.
local function push_message(job)
  local id, queue, task = job.id, queue_name(job.priority, job.lane), TASKS[job.priority]
  local now = ('%d.%06d'):format(TIME[1], TIME[2])
  local tag, args = id .. '-' .. now, cjson.encode("'" .. (job.preview or job.size) .. "'") -- a script sends at most one of a job
  redis.pcall('LPUSH', P .. queue, MESSAGE:format(id, task, id, id, args, id, queue, tag))
  local event = EVENT:format(id, id, task, args, queue, queue, now)
  redis.pcall('PUBLISH', KEYS[2], EVENT_MESSAGE:format(cjson.encode(event), tag))
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

-- A live job is in one of these: leases, pending, or held.
local function leave_lists(job)
  if job.status == 'running' then
    redis.call('ZREM', P .. 'leases', job.id)
    return
  end
  if redis.call('ZREM', queue_key('pending', job.priority, job.lane), job.id) == 1 then return end
  local of = account(job.owner, job.lane)
  local deferred = counts_key('held', job.priority)
  if redis.call('ZREM', deferred .. ':' .. of, job.id) == 1 then
    if redis.call('HINCRBY', deferred, of, -1) == 0 then redis.call('HDEL', deferred, of) end
  end
end

-- A message of a job has come: what was sent well before it is lost.
local function note_claimed(job)
  local sent = queue_key('claimed', job.priority, job.lane)
  if job.enqueued_at > tonumber(redis.call('GET', sent) or '0') then redis.call('SET', sent, int(job.enqueued_at)) end
end

-- The fencing token of a new claim. Redis may have forgotten the claim before it (a fail-over, a crash), but not the time,
-- so that no two claims have the same.
local function next_fence(job)
  return math.max(job.fence + 1, NOW)
end

-- Send the message of a queued job. job: as push_message has it.
local function send(job)
  redis.call('ZADD', queue_key('pending', job.priority, job.lane), int(NOW), job.id)
  if job.lane ~= '' then redis.call('SADD', P .. 'lanes', job.lane) end
  push_message(job)
end

-- From now until it ends, a job whose record says counted is in flight for its owner.
local function add_in_flight(priority, owner, model_queue)
  redis.call('HINCRBY', counts_key('outstanding', priority), account(owner, model_queue), 1)
end

-- Jobs in flight of one model queue, or of all.
local function in_flight(priority, model_queue)
  local sum, counts = 0, redis.call('HGETALL', counts_key('outstanding', priority))
  for i = 1, #counts, 2 do
    if not model_queue or model_queue_of_account(counts[i]) == model_queue then sum = sum + tonumber(counts[i + 1]) end
  end
  return sum
end

-- How many jobs of a model queue may be in flight; nil for any number, while nobody leads.
local function capacity_of(priority, model_queue)
  local capacities = cjson.decode(redis.call('GET', P .. priority .. '_room') or '{}')
  return capacities[model_queue] or capacities['']
end

local function has_deferred(priority, model_queue)
  for _, name in ipairs(redis.call('HKEYS', counts_key('held', priority))) do
    if model_queue_of_account(name) == model_queue then return true end
  end
  return false
end

-- Send a deferred job.
local function release(job)
  leave_lists(job)
  redis.call('HSET', P .. 'job:' .. job.id, 'enqueued_at', int(NOW), 'counted', 1)
  add_in_flight(job.priority, job.owner, job.lane)
  send(job)
end

-- The accounts of a model queue that have deferred interactive jobs, with their jobs in flight for their weight.
local function accounts_in_line(model_queue)
  local sent, accounts = {}, {}
  local counts = redis.call('HGETALL', P .. 'interactive_outstanding')
  for i = 1, #counts, 2 do sent[counts[i]] = tonumber(counts[i + 1]) end
  for _, name in ipairs(redis.call('HKEYS', P .. 'interactive_held')) do
    if model_queue_of_account(name) == model_queue then
      local owner = owner_of_account(name)
      local weight = keyed(owner) and redis.call('HGET', P .. 'key:' .. owner, 'weight') or '1'
      table.insert(accounts, { name = name, load = (sent[name] or 0) / tonumber(weight) })
    end
  end
  return accounts
end

-- The account whose turn it is, which leaves the line, by the rule of fair_share.py: the one with the least load. Among
-- equals chance decides: of more accounts than places each has its turn.
local function take_first(accounts)
  local first, equal = nil, 0
  for i, candidate in ipairs(accounts) do
    if not first or candidate.load < accounts[first].load then
      first, equal = i, 1
    elseif candidate.load == accounts[first].load then
      equal = equal + 1
      if math.random(equal) == 1 then first = i end
    end
  end
  return table.remove(accounts, first).name
end

-- An interactive job has ended: the next deferred one takes its place, unless there are fewer places by now.
local function release_next(model_queue)
  if redis.call('EXISTS', P .. 'interactive_held') == 0 then return end
  local capacity = capacity_of('interactive', model_queue)
  if capacity and in_flight('interactive', model_queue) >= capacity then return end
  math.randomseed(tonumber(TIME[2])) -- the server begins each script with the same numbers
  local accounts = accounts_in_line(model_queue)
  while #accounts > 0 do
    local index = P .. 'interactive_held:' .. take_first(accounts)
    for job in jobs_of(index, redis.call('ZRANGE', index, 0, 0)) do return release(job) end
  end
end

-- The leader sends bulk jobs, and interactive ones where places were added.
local function remove_in_flight(job)
  if job.counted == '' then return end
  local of, counts = account(job.owner, job.lane), counts_key('outstanding', job.priority)
  if redis.call('HINCRBY', counts, of, -1) <= 0 then redis.call('HDEL', counts, of) end
  if job.priority == 'bulk' then wake() else release_next(job.lane) end
end

-- Assign a job to the queue of the model that it asks for.
local function move_to_model_queue(job, model_queue)
  remove_in_flight(job)
  job.lane = model_queue
  redis.call('HSET', P .. 'job:' .. job.id, 'lane', model_queue)
  if job.counted ~= '' then add_in_flight(job.priority, job.owner, model_queue) end
end
