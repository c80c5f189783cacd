"""Tests of the rooms run and prompts, which it reads."""
