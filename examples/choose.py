"""Frozen, fine-tuned, adapted or from scratch, on your images? python examples/choose.py PHOTOS START EPOCHS SEEDS"""

import sys

import supancl

photos, start, epochs, seeds = sys.argv[1:]
result = supancl.compare(data=photos, start=start, epochs=int(epochs), seeds=int(seeds), size=96, out="runs/choice")
for row in result["summary"]:
    print(f"{row['row']}: {row['accuracy']:.1f}%")
print(*result["findings"], sep="\n")
