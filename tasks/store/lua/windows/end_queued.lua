-- needs: windows
-- ARGV: id. Ends a queued window of a batch that is ending; who runs one is told by the heartbeat.
-- Returns 1, or 0 where it did not.
local win = load_window(ARGV[1])
return win and win.status == 'queued' and end_if_over(win) and 1 or 0
