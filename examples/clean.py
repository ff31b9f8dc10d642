"""Find wrong labels, duplicates and outliers in class folders: python examples/clean.py PHOTOS START"""

import csv
import sys

import supancl

photos, start = sys.argv[1:]
supancl.audit(start, data=photos, out="audit")
with open("audit/suspects.csv") as file:
    for suspect in list(csv.DictReader(file))[:5]:
        print(f"{suspect['path']}: {suspect['label']}, or {suspect['suggested']}?")
