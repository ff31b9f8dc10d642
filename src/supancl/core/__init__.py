"""What the paper defines: encoder, heads, branches, pools, losses, schedules, and methods as a table of rows."""
