-- needs: base, quotas
-- What is told to webhooks, put in by the script that ends a job or a batch. Nothing here is touched by work without one.
--
-- hook:ID hash          a delivery: one event for one address; hook:ID:attempts what came of each attempt, as JSON.
--                       tries: attempts of which something came; lost: those since of which nothing did; sending:
--                       somebody has it; again: it was replayed meanwhile
-- hooks:OWNER, hooks:OWNER:STATUS   indexes: id -> sequence number
-- hook_queue:OWNER:TO   an owner's pending deliveries to one host and port: id -> when to send it, or, while somebody
--                       does, when it is given to another
-- hook_due:OWNER        hosts and ports for which an owner has some -> the earliest of these times
-- hook_owners           owners that have some -> the earliest of these times
-- hook_seq              the last sequence number given
-- hooks                 channel: there is something to send now

local EVENT_BYTES = 19000 -- of what an event says of its object: with the rest it stays under 20 kB

local function hook_queue(owner, to)
  return P .. 'hook_queue:' .. owner .. ':' .. to
end

-- Note in an index what is first in the queue behind a member of it.
local function note_first(index, member, queue)
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('ZADD', index, first[2], member)
  else
    redis.call('ZREM', index, member)
  end
end

-- After any change of such a queue.
local function note_next(owner, to)
  note_first(P .. 'hook_due:' .. owner, to, hook_queue(owner, to))
  note_first(P .. 'hook_owners', owner, P .. 'hook_due:' .. owner)
end

local function wake_senders() -- if anything is due, which may have waited for room
  if redis.call('ZCOUNT', P .. 'hook_owners', '-inf', int(NOW)) > 0 then redis.call('PUBLISH', P .. 'hooks', '') end
end

local function schedule_hook(hook, at)
  redis.call('HSET', P .. 'hook:' .. hook.id, 'next_at', int(at))
  redis.call('ZADD', hook_queue(hook.owner, hook.to), int(at), hook.id)
  note_next(hook.owner, hook.to)
  wake_senders()
end

-- Puts the end of a job or a batch into the outbox, if its webhook wants to hear of it. parts: names and JSON of what
-- is told of it, the most important first; what does not fit is left out.
local function announce(object_id, owner, webhook, status, parts)
  local hook = cjson.decode(webhook)
  local kind = object_id:match('^%a+')
  local event, wanted = kind .. '.' .. status, false
  for _, name in ipairs(hook.events) do wanted = wanted or name == event end
  if not wanted then return end

  local data = '"id":"' .. object_id .. '","status":"' .. status .. '"'
  for i = 1, #parts, 2 do
    local part = ',"' .. parts[i] .. '":' .. (parts[i + 1] == '' and 'null' or parts[i + 1])
    if #data + #part <= EVENT_BYTES then data = data .. part end
  end
  local id = 'evt_' .. object_id:sub(#kind + 2) -- an object ends once
  local body = '{"id":"' .. id .. '","object":"event","type":"' .. event .. '","created_at":' ..
    int(math.floor(NOW / 1000)) .. ',"data":{' .. data .. '}}'
  local seq = redis.call('INCR', P .. 'hook_seq')
  local bytes = HOOK_BYTES + #body + #hook.url
  count_bytes(owner, bytes)
  redis.call('HSET', P .. 'hook:' .. id, 'stored', int(bytes), 'id', id, 'seq', seq, 'owner', owner, 'status', 'pending', 'type', event,
    'object_id', object_id, 'url', hook.url, 'to', hook.to, 'created_at', int(NOW), 'body', body, 'fence', 0,
    'tries', 0, 'lost', 0, 'sending', '', 'again', '')
  redis.call('ZADD', P .. 'hooks:' .. owner, seq, id)
  redis.call('ZADD', P .. 'hooks:' .. owner .. ':pending', seq, id)
  schedule_hook({ id = id, owner = owner, to = hook.to }, NOW)
end
