"""The detector: what the encoder gives to it, what is frozen, which encoders do not fit."""

import pytest
import torch
from torchvision.models import ResNet
from torchvision.models.detection.image_list import ImageList

from supancl.core.encoders import EncoderSpec
from supancl.detection import detect_spec
from supancl.detection.model import build_detector, copy_resnet, open_start
from supancl.errors import BadInput
from supancl.runs.encoder_file import save_encoder
from tests.helpers import mentions

from .drawn import SIDE, TINY, tiny_encoder

FIVE = {"anchor_sizes": [16, 24, 40, 64, 96], "pool": 3}


def built(arch="c4", encoder=None, **overrides):
    spec = detect_spec(arch, {**TINY, **(FIVE if arch == "fpn" else {}), **overrides})
    return build_detector(encoder or tiny_encoder(), spec, ("disc", "square"))


def encoder_tensors(detector):
    """name in the ResNet -> tensor in the detector."""
    found = {}
    for name, value in detector.state_dict().items():
        for prefix in ("backbone.body.", "backbone.", "roi_heads.box_head."):
            short = name.removeprefix(prefix)
            if short != name and short.startswith(("conv1.", "bn1.", "layer")) and not short.startswith("layer_blocks"):
                found[short] = value
    return found


@pytest.mark.parametrize("arch", ["c4", "fpn"])
def test_every_tensor_of_the_encoder_is_in_the_detector(tmp_path, arch):
    encoder = EncoderSpec("resnet18", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)).build()
    with torch.no_grad():
        for value in encoder.body.state_dict().values():
            value.add_(3 if value.dtype == torch.long else torch.rand(value.shape) + 0.01)
    save_encoder(tmp_path / "encoder.safetensors", encoder, (), "drawn")
    given = encoder_tensors(built(arch, open_start(str(tmp_path / "encoder.safetensors"))))
    fresh = encoder_tensors(built(arch, open_start("random:resnet18", 1)))
    expected = encoder.body.state_dict()
    assert set(given) == set(fresh) == set(expected)
    for name, value in expected.items():
        assert torch.equal(given[name], value), name
        assert not torch.equal(fresh[name], value), name


@pytest.mark.parametrize(("arch", "layer4"), [("c4", "roi_heads.box_head.layer4"), ("fpn", "backbone.body.layer4")])
def test_frozen_stages_keep_weights_and_statistics(arch, layer4):
    detector = built(arch, freeze=["stem", "layer1", "layer4"])
    before = {name: value.clone() for name, value in detector.state_dict().items()}
    optimizer = torch.optim.SGD(detector.parameter_groups(), lr=0.1)
    targets = [{"boxes": torch.tensor([[10.0, 10.0, 50.0, 50.0]]), "labels": torch.tensor([1])}] * 2
    detector.train()
    sum(detector([torch.rand(3, SIDE, SIDE)] * 2, targets).values()).backward()
    optimizer.step()
    body = "backbone.body" if arch == "fpn" else "backbone"
    frozen = tuple(f"{stage}." for stage in (f"{body}.conv1", f"{body}.bn1", f"{body}.layer1", layer4))
    changed = {name for name, value in detector.state_dict().items() if not torch.equal(value, before[name])}
    assert not [name for name in changed if name.startswith(frozen)]
    assert not [name for name, _ in detector.named_parameters() if not name.startswith(frozen) and name not in changed]
    assert f"{body}.layer2.0.bn1.running_mean" in changed


@pytest.mark.parametrize("arch", ["c4", "fpn"])
def test_half_precision_moves_no_anchor(arch):
    """bf16 has 8 bits: at 1300 px its steps are 8 px wide, which would shift what the RPN learns from."""
    generator = built(arch).rpn.anchor_generator
    images = ImageList(torch.zeros(1, 3, 320, 1600), [(320, 1600)])
    strides = (4, 8, 16, 32, 64) if arch == "fpn" else (16,)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        maps = [torch.zeros(1, 2, 320 // stride, 1600 // stride, dtype=dtype) for stride in strides]
        found.append(generator(images, maps)[0])
    assert found[1].dtype == torch.float32
    assert torch.equal(found[0], found[1])


def test_a_resnet_of_timm_is_taken_where_it_computes_the_same():
    encoder = EncoderSpec("timm:resnet18").build()
    with torch.no_grad():
        for value in encoder.body.state_dict().values():
            value.add_(3 if value.dtype == torch.long else 0.1 * torch.rand(value.shape))
    body, images = copy_resnet(encoder), torch.rand(2, 3, 64, 64)
    assert isinstance(body, ResNet)
    assert body.training
    assert all(value.requires_grad for value in body.parameters())
    with torch.no_grad():
        torch.testing.assert_close(body.eval()(images), encoder.eval()(images), rtol=1e-3, atol=1e-4)
    given = encoder_tensors(built(encoder=encoder))
    expected = encoder.body.state_dict()
    assert set(given) == set(expected)
    assert all(torch.equal(given[name], value) for name, value in expected.items())


@pytest.mark.parametrize("name", ["timm:resnet18d", "timm:resnetblur18"])  # other tensors; the same, and blurred maps
def test_a_resnet_that_computes_otherwise_is_refused(name):
    with pytest.raises(BadInput, match=mentions(f"'{name}'")):
        copy_resnet(EncoderSpec(name).build())
