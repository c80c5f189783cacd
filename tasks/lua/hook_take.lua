-- ARGV: lease ms, most deliveries, most to one receiver at once, most of one owner at once, most senders that one may
--       lose in a row, result ttl ms, most kept of a status, then as JSON what the caller is sending: receivers and
--       how many deliveries to each, owners and how many of each.
-- Takes deliveries that are due; whoever holds one must say what came of it within the lease. Drops old records.
-- Returns ms until the next one is due or -1, ms of now, then of each: id, fence, which of its tries this is, owner,
-- url, receiver, body.
local lease, most, most_to_one, most_of_one = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local most_lost, ttl, kept = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local to_one, of_one = cjson.decode(ARGV[8]), cjson.decode(ARGV[9])
local DROP, OWNERS = 200, 1000 -- in one script

for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'hook_expiry', '-inf', int(NOW), 'LIMIT', 0, DROP)) do
  forget_hook(id, P .. 'hook_expiry')
end

local function nothing_came(hook, number, why)
  note_attempt(hook, cjson.encode({ number = number, at = NOW / 1000, duration_s = cjson.null,
    status_code = cjson.null, error = why }))
end

-- Whether it may be sent.
local function begin(hook)
  local lost = tonumber(hook.lost) or 0
  if hook.sending ~= '' then
    lost = lost + 1
    nothing_came(hook, tonumber(hook.fence), 'the sender was lost before it could note an answer')
  end
  if redis.call('EXISTS', gone_key(hook.owner, hook.url)) == 1 then
    nothing_came(hook, cjson.null, 'not sent: the address answered 410 before')
    end_hook(hook, 'disabled', ttl, kept)
  elseif lost >= most_lost then
    end_hook(hook, 'failed', ttl, kept)
  else
    hook.fence = int(hook.fence + 1)
    redis.call('HSET', P .. 'hook:' .. hook.id, 'fence', hook.fence, 'lost', int(lost), 'sending', '1', 'again', '',
      'next_at', '')
    -- The more senders it has lost, the longer it waits for the next: they may be lost because of it.
    redis.call('ZADD', hook_queue(hook.owner, hook.to), int(NOW + lease * (lost + 1)), hook.id)
    return true
  end
end

local function due(index, limit)
  return redis.call('ZRANGEBYSCORE', index, '-inf', int(NOW), 'LIMIT', 0, limit)
end

local looks = most -- at receivers of an owner: those that are full stay in front
for _ in pairs(to_one) do looks = looks + 1 end
local answer = { -1, int(NOW) }
local taken, ended = 0, 0

local function note_later(index)
  local at = redis.call('ZRANGEBYSCORE', index, '(' .. int(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if at and (answer[1] < 0 or at - NOW < answer[1]) then answer[1] = at - NOW end
end

local function take(owner, to, room)
  local queue = hook_queue(owner, to)
  for _, id in ipairs(due(queue, room)) do
    local hook = load_hook(id)
    if not hook then
      redis.call('ZREM', queue, id)
      ended = ended + 1
    elseif begin(hook) then
      taken = taken + 1
      to_one[to], of_one[owner] = (to_one[to] or 0) + 1, (of_one[owner] or 0) + 1
      for _, value in ipairs({ id, hook.fence, int(hook.tries + 1), owner, hook.url, to,
        redis.call('HGET', P .. 'hook:' .. id, 'body') }) do table.insert(answer, value) end
    else
      ended = ended + 1
    end
  end
  note_next(owner, to)
end

local function room_for(owner)
  return math.min(most - taken, most_of_one - (of_one[owner] or 0))
end

for _, owner in ipairs(due(P .. 'hook_owners', OWNERS)) do
  if room_for(owner) > 0 then
    for _, to in ipairs(due(P .. 'hook_due:' .. owner, looks + taken)) do
      local room = math.min(room_for(owner), most_to_one - (to_one[to] or 0))
      if room > 0 then take(owner, to, room) end
    end
    note_later(P .. 'hook_due:' .. owner)
  end
end
note_later(P .. 'hook_owners')
if ended > 0 then answer[1] = 0 end -- others may wait behind them
return answer
