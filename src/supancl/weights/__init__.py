"""What a run leaves on disk: encoder file, checkpoints, run folder; and others' checkpoints."""
