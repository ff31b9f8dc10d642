"""One step, the loop around it, what is checked before it, and what watches it."""
