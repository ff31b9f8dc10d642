"""Files of a run: encoder file, checkpoints, run folder; and import of other libraries' checkpoints."""
