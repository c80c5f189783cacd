-- needs: base, files
-- ARGV: id. Its object is removed, or never was.
redis.call('ZREM', P .. 'file_begun', ARGV[1])
redis.call('ZREM', P .. 'file_garbage', ARGV[1])
release_file(ARGV[1])
return 1
