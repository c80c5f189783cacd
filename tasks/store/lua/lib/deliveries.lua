-- needs: base, outbox, quotas
-- Deliveries from the outbox on: attempts, ends, and what is kept of them.
--
-- hooks:OWNER:STATUS:ended   of those that ended so: id -> a number that grows with each end
-- hook_expiry           ended deliveries: id -> when the record is dropped
-- hook_gone:OWNER       addresses that answered 410, by their SHA-1: until when nothing more is sent there
-- hook_secrets          owner -> the keys of its signatures, as JSON

local MOST_ATTEMPTS_KEPT = 50
local MOST_GONE = 10000 -- addresses of one owner; those beyond are asked once more

local function is_gone(owner, url)
  return tonumber(redis.call('ZSCORE', P .. 'hook_gone:' .. owner, redis.sha1hex(url)) or '0') > NOW
end

local function note_gone(owner, url, ttl_ms)
  local gone = P .. 'hook_gone:' .. owner
  redis.call('ZADD', gone, int(NOW + ttl_ms), redis.sha1hex(url))
  redis.call('ZREMRANGEBYRANK', gone, 0, -MOST_GONE - 1)
  redis.call('PEXPIRE', gone, int(ttl_ms))
end

-- The clock was set back by so much: what was to be done at a time of the old one does not wait longer for it.
local function hooks_earlier(ms)
  for _, owner in ipairs(redis.call('ZRANGE', P .. 'hook_owners', 0, -1)) do
    for _, to in ipairs(redis.call('ZRANGE', P .. 'hook_due:' .. owner, 0, -1)) do
      local queue = hook_queue(owner, to)
      for _, id in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
        local at, key = redis.call('ZINCRBY', queue, int(-ms), id), P .. 'hook:' .. id
        local next_at = redis.call('HGET', key, 'next_at')
        if next_at and next_at ~= '' then redis.call('HSET', key, 'next_at', int(tonumber(at))) end
      end
      note_next(owner, to)
    end
  end
end

local function load_hook(id)
  local names = { 'id', 'seq', 'owner', 'status', 'url', 'to', 'fence', 'tries', 'lost', 'sending', 'again', 'stored' }
  local values = redis.call('HMGET', P .. 'hook:' .. id, unpack(names))
  if not values[1] then return nil end
  local hook = {}
  for i, name in ipairs(names) do hook[name] = values[i] or '' end
  return hook
end

local function note_attempt(hook, attempt)
  local key = P .. 'hook:' .. hook.id
  local bytes = #attempt
  if redis.call('RPUSH', key .. ':attempts', attempt) > MOST_ATTEMPTS_KEPT then
    bytes = bytes - #redis.call('LPOP', key .. ':attempts')
  end
  resize(key, hook.owner, bytes)
end

local function leave_status(hook)
  local index = P .. 'hooks:' .. hook.owner .. ':' .. hook.status
  redis.call('ZREM', index, hook.id)
  redis.call('ZREM', index .. ':ended', hook.id)
end

-- From an index of ids; what is there without a record is only taken out of it.
local function forget_hook(id, index)
  local hook = load_hook(id)
  if not hook then
    redis.call('ZREM', index, id)
    return
  end
  count_bytes(hook.owner, -(tonumber(hook.stored) or 0))
  redis.call('DEL', P .. 'hook:' .. hook.id, P .. 'hook:' .. hook.id .. ':attempts')
  redis.call('ZREM', P .. 'hooks:' .. hook.owner, hook.id)
  leave_status(hook)
  redis.call('ZREM', P .. 'hook_expiry', hook.id)
end

local function move_hook(hook, status)
  leave_status(hook)
  redis.call('ZADD', P .. 'hooks:' .. hook.owner .. ':' .. status, hook.seq, hook.id)
  redis.call('HSET', P .. 'hook:' .. hook.id, 'status', status)
  hook.status = status
end

-- The one way out of pending. most: of an owner's deliveries that ended this way, those that did so first are dropped
-- beyond it: one that came late, after an outage or a replay, is what its owner looks for.
local function end_hook(hook, status, ttl_ms, most)
  move_hook(hook, status)
  redis.call('HSET', P .. 'hook:' .. hook.id, 'ended_at', int(NOW), 'next_at', '', 'sending', '')
  redis.call('ZREM', hook_queue(hook.owner, hook.to), hook.id)
  note_next(hook.owner, hook.to)
  redis.call('ZADD', P .. 'hook_expiry', int(NOW + ttl_ms), hook.id)
  local index = P .. 'hooks:' .. hook.owner .. ':' .. status .. ':ended'
  redis.call('ZADD', index, redis.call('INCR', P .. 'hook_seq'), hook.id)
  local over = redis.call('ZCARD', index) - most
  if over > 0 then
    for _, id in ipairs(redis.call('ZRANGE', index, 0, over - 1)) do forget_hook(id, index) end
  end
end
