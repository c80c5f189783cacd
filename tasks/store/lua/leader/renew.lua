-- needs: leader
-- ARGV: leader token. Returns 'ok', or 'lost' if another leads.
if not renew_lead(ARGV[1]) then return 'lost' end
return 'ok'
