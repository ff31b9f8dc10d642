"""Where pixels lie: in memory, in the packed cache, or streamed from tar shards."""
