-- needs: base, leader
-- ARGV: leader token. Another may lead at once.
if renew_lead(ARGV[1]) then redis.call('DEL', P .. 'leader', P .. 'led_by', P .. 'bulk_room', P .. 'interactive_room') end
return 1
