"""What people call first from Python: `pretrain` and `embed` take names, paths and arrays, and show their progress."""
