-- needs: base, deliveries, outbox
-- ARGV: id, fence, status ('pending' to try again), ms until then, the attempt as JSON, result ttl ms,
--       most kept of a status.
-- Returns 1, or 0 if the delivery is not this sender's any more.
local hook = load_hook(ARGV[1])
if not hook or hook.sending == '' or hook.fence ~= ARGV[2] then return 0 end
note_attempt(hook, ARGV[5])
if hook.again ~= '' and ARGV[3] ~= 'delivered' then -- as the replay wanted it, all tries before it
  redis.call('HSET', P .. 'hook:' .. hook.id, 'sending', '', 'again', '')
  schedule_hook(hook, NOW)
  return 1
end
redis.call('HSET', P .. 'hook:' .. hook.id, 'tries', int(hook.tries + 1), 'lost', 0, 'again', '')
if ARGV[3] == 'pending' then
  redis.call('HSET', P .. 'hook:' .. hook.id, 'sending', '')
  schedule_hook(hook, NOW + tonumber(ARGV[4]))
  return 1
end
if ARGV[3] == 'disabled' then note_gone(hook.owner, hook.url, tonumber(ARGV[6])) end
end_hook(hook, ARGV[3], tonumber(ARGV[6]), tonumber(ARGV[7]))
wake_senders()
return 1
