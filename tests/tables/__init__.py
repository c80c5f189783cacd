"""Tests of the package tables, in folders named as its rooms."""
