"""Stores of pixels: in memory, in the packed cache, or streamed from tar shards."""
