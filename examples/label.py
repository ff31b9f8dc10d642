"""Label photographs from a few labels, without training: python examples/label.py PHOTOS START"""

import sys

import supancl

photos, start = sys.argv[1:]
labels = supancl.predict(start, data=photos, out="labels.csv")
print(f"{labels['predicted']} labels in labels.csv; expected right: {labels['accuracy']:.1f}%")
supancl.map(start, data=photos, out="map.html")
