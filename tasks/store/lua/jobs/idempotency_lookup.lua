-- needs: idempotency
-- ARGV: kind, idempotency key, body hash.
-- Returns 'existing' with the record, 'conflict' with the id of another body's, or 'none'.
return idempotent(ARGV[1], ARGV[2], ARGV[3]) or { 'none', {} }
