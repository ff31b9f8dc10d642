"""Export an encoder, load it with timm alone, find images that look alike: python examples/to_timm.py PHOTOS START"""

import sys
from pathlib import Path

import timm
import torch
from PIL import Image, ImageOps

import supancl

photos, start = Path(sys.argv[1]), sys.argv[2]
supancl.export(start, "model", format="hf")
model = timm.create_model("local-dir:model", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
images = [Image.open(path).convert("RGB") for path in sorted(photos.rglob("*.*"))]
with torch.inference_mode():
    features = torch.nn.functional.normalize(torch.cat([model(transform(image)[None]) for image in images]))
sheet = Image.new("RGB", (8 * 100, 5 * 100))
for row, query in enumerate(torch.linspace(0, len(images) - 1, 5).long().tolist()):
    for column, found in enumerate((features @ features[query]).topk(8).indices.tolist()):  # the first is itself
        sheet.paste(ImageOps.fit(images[found], (96, 96)), (column * 100, row * 100))
sheet.save("alike.jpg")
