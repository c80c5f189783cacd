-- needs: base
-- Who works on batches.
--
-- leader                who works on batches; gone when it was silent for LEAD_MS
-- led_by                who worked on them last: it leads on, unless another takes over
-- bulk_room             how many bulk jobs may be sent and not ended, as long as a leader sends the deferred ones;
--                       JSON: model queue -> how many, '' for queues that are not listed
-- interactive_room      the same of interactive jobs

local LEAD_MS = 5000 -- a leader that is silent so long may be replaced

-- Whether the holder of the token works on batches, and renews its lead: being slow costs it nothing unless
-- another has taken over.
local function renew_lead(token)
  if redis.call('GET', P .. 'led_by') ~= token then return false end
  redis.call('SET', P .. 'leader', token, 'PX', LEAD_MS)
  redis.call('PEXPIRE', P .. 'bulk_room', LEAD_MS)
  redis.call('PEXPIRE', P .. 'interactive_room', LEAD_MS)
  return true
end
