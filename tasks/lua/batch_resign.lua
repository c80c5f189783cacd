-- ARGV: leader token. Another may lead at once.
if redis.call('GET', P .. 'leader') == ARGV[1] then redis.call('DEL', P .. 'leader', P .. 'bulk_room') end
return 1
