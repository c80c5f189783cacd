"""Processes of tests: forks of one that has imported what they run, and what sees that one was lost."""
