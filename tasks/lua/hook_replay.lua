-- ARGV: id, owner. Sends it again now, all its tries before it; one that is being sent stays as it is.
-- Returns 1, or 0 if the owner has no such delivery.
local hook = load_hook(ARGV[1])
if not hook or hook.owner ~= ARGV[2] then return 0 end
if hook.sending ~= '' then return 1 end
redis.call('DEL', gone_key(hook.owner, hook.url))
redis.call('ZREM', P .. 'hook_expiry', hook.id)
redis.call('HSET', P .. 'hook:' .. hook.id, 'tries', 0, 'ended_at', '')
move_hook(hook, 'pending')
schedule_hook(hook.id, hook.to, NOW)
return 1
