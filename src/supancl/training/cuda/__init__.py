"""What makes a step fast on a GPU without changing it: capture, layers, reuse."""
