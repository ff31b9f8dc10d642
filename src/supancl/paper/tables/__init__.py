"""The tables of the paper: how each is laid out, which runs fill it, and how they are trained."""
