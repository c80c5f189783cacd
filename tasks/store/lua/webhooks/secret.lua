-- needs: base
-- ARGV: owner, a fresh secret, how long the one before it stays valid, ms, or '' to change nothing.
-- The secrets of an owner, whose first one is made here. Returns the current one, then the one before it and until
-- when it is valid, or '' twice; '' three times when it cannot be changed, for the one before is still valid.
local stored = redis.call('HGET', P .. 'hook_secrets', ARGV[1])
local now = stored and cjson.decode(stored)
if not now or (ARGV[3] ~= '' and now.current ~= ARGV[2]) then
  if now and now.until_ms > NOW then return { '', '', '' } end
  now = { current = ARGV[2], previous = now and now.current or '', until_ms = now and NOW + tonumber(ARGV[3]) or 0 }
  redis.call('HSET', P .. 'hook_secrets', ARGV[1], cjson.encode(now))
end
if now.until_ms <= NOW then return { now.current, '', '' } end
return { now.current, now.previous, int(now.until_ms) }
