"""Helpers that every other folder may use. They import nothing of ours."""
