"""The arguments of each command: `arguments` adds them, `check` refuses what it can before torch is imported."""
