"""Where images come from: folders, arrays, tables, tar shards, other libraries, benchmark data sets."""
