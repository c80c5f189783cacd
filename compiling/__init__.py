"""From a checkpoint to GGUFs in several number formats, each measured against the source on this machine."""
