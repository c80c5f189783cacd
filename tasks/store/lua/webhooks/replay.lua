-- needs: base, deliveries, outbox
-- ARGV: id, owner. Sends it again now, all its tries before it; one that is being sent, when that has failed.
-- Returns 1, or 0 if the owner has no such delivery.
local hook = load_hook(ARGV[1])
if not hook or hook.owner ~= ARGV[2] then return 0 end
redis.call('ZREM', P .. 'hook_gone:' .. hook.owner, redis.sha1hex(hook.url))
redis.call('HSET', P .. 'hook:' .. hook.id, 'tries', 0, 'lost', 0)
if hook.sending ~= '' then
  redis.call('HSET', P .. 'hook:' .. hook.id, 'again', 1)
  return 1
end
redis.call('ZREM', P .. 'hook_expiry', hook.id)
redis.call('HSET', P .. 'hook:' .. hook.id, 'ended_at', '')
move_hook(hook, 'pending')
schedule_hook(hook, NOW)
return 1
