"""What each command takes: `arguments(parser)`, and `check(args)` for what can be refused before torch is imported."""
