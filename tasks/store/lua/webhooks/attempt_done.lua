-- needs: base, deliveries, outbox
-- ARGV: an object of id, fencing_token, status ('pending' to try again), delay_ms (until then), ttl_ms (of results), kept (most
--       of a status); then the attempt as JSON
-- Returns 1, or 0 if the delivery is not this sender's any more.
local args = cjson.decode(ARGV[1])
local hook = load_hook(args.id)
if not hook or hook.sending == '' or hook.fence ~= int(args.fencing_token) then return 0 end
note_attempt(hook, ARGV[2])
if hook.again ~= '' and args.status ~= 'delivered' then -- as the replay wanted it, all tries before it
  redis.call('HSET', P .. 'hook:' .. hook.id, 'sending', '', 'again', '')
  schedule_hook(hook, NOW)
  return 1
end
redis.call('HSET', P .. 'hook:' .. hook.id, 'tries', int(hook.tries + 1), 'lost', 0, 'again', '')
if args.status == 'pending' then
  redis.call('HSET', P .. 'hook:' .. hook.id, 'sending', '')
  schedule_hook(hook, NOW + args.delay_ms)
  return 1
end
if args.status == 'disabled' then note_gone(hook.owner, hook.url, args.ttl_ms) end
end_hook(hook, args.status, args.ttl_ms, args.kept)
wake_senders()
return 1
