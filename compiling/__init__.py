"""Converts a checkpoint to GGUFs in several number formats, and compares each with the source."""
