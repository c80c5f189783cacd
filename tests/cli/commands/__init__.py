"""Tests of the commands, and of the command line that leads to them."""
