"""Processes of tests that are forks of one that has imported what they run."""
