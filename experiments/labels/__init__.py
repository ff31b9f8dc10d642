"""Few labels, coarse labels, long tails: `runs` on CIFAR-100, `digits` on a CPU, `page` for docs/labels.md."""
