"""Tests of the command, most of them by running it as a user would."""
