-- needs: base, deliveries, outbox
-- ARGV: an object of lease_ms, most (deliveries), free (how many more the caller can send), most_to_one (host at once),
--       most_lost (senders that one may lose in a row), ttl_ms (of results), kept (most of a status), sending: what the
--       caller is sending, as owner, host and how many of each
-- Takes deliveries that are due; whoever holds one must say what came of it within the lease. Drops old records.
-- Returns ms until the next one is due or -1, ms of now, then of each delivery: id, fencing token, which of its tries this is,
-- owner, url, host, body.
local args = cjson.decode(ARGV[1])
local ttl, kept = args.ttl_ms, args.kept
local to_host, of_owner, of_both = {}, {}, {} -- deliveries under way
local DROP, OWNERS, LOOKS = 200, 1000, 500 -- in one script; looks at hosts and ports of an owner

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
  if is_gone(hook.owner, hook.url) then
    nothing_came(hook, cjson.null, 'not sent: the address answered 410 before')
    end_hook(hook, 'disabled', ttl, kept)
  elseif lost >= args.most_lost then
    end_hook(hook, 'failed', ttl, kept)
  else
    hook.fence = int(hook.fence + 1)
    redis.call('HSET', P .. 'hook:' .. hook.id, 'fence', hook.fence, 'lost', int(lost), 'sending', '1', 'again', '',
      'next_at', '')
    -- The more senders it has lost, the longer it waits for the next: they may be lost because of it.
    redis.call('ZADD', hook_queue(hook.owner, hook.to), int(NOW + args.lease_ms * (lost + 1)), hook.id)
    return true
  end
end

local function due(index, limit)
  return redis.call('ZRANGEBYSCORE', index, '-inf', int(NOW), 'LIMIT', 0, limit)
end

local function note_sending(owner, host, count)
  local both = owner .. ' ' .. host
  to_host[host], of_owner[owner] = (to_host[host] or 0) + count, (of_owner[owner] or 0) + count
  of_both[both] = (of_both[both] or 0) + count
end
for _, one in ipairs(args.sending) do note_sending(one[1], one[2], one[3]) end

-- How many more of so many free ones an owner that holds some may take: connection_slots.py.
local EIGHTH, HALF = 8, 2
local function share(slots, in_use, part) return math.ceil((slots - part * in_use) / (part + 1)) end

local answer = { -1, int(NOW) }
local taken, ended = 0, 0

local function note_later(index)
  local at = redis.call('ZRANGEBYSCORE', index, '(' .. int(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if at and (answer[1] < 0 or at - NOW < answer[1]) then answer[1] = at - NOW end
end

local function take(owner, to, host, limit)
  local queue = hook_queue(owner, to)
  for _, id in ipairs(due(queue, limit)) do
    local hook = load_hook(id)
    if not hook then
      redis.call('ZREM', queue, id)
      ended = ended + 1
    elseif begin(hook) then
      taken = taken + 1
      note_sending(owner, host, 1)
      table.insert(answer, { id, hook.fence, int(hook.tries + 1), owner, hook.url, host,
        redis.call('HGET', P .. 'hook:' .. id, 'body') })
    else
      ended = ended + 1
    end
  end
  note_next(owner, to)
end

local function limit_of_owner(owner)
  return math.min(args.most - taken, share(args.free - taken, of_owner[owner] or 0, EIGHTH))
end

for _, owner in ipairs(due(P .. 'hook_owners', OWNERS)) do
  if limit_of_owner(owner) > 0 then
    for _, to in ipairs(due(P .. 'hook_due:' .. owner, LOOKS)) do -- those that are full stay in front
      if limit_of_owner(owner) <= 0 then break end
      local host = to:match('^(.*):%d+$')
      local of_host = share(args.most_to_one - (to_host[host] or 0), of_both[owner .. ' ' .. host] or 0, HALF)
      local limit = math.min(limit_of_owner(owner), of_host)
      if limit > 0 then take(owner, to, host, limit) end
    end
    note_later(P .. 'hook_due:' .. owner)
  end
end
note_later(P .. 'hook_owners')
if ended > 0 then answer[1] = 0 end -- others may wait behind them
return answer
