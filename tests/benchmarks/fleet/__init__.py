"""1, 10 and 100 workers, simulated from what one was measured to do."""
