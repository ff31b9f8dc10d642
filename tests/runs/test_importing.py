"""Checkpoints of other libraries: found by their names, equal in their features, refused in one line."""

from __future__ import annotations

import argparse
import functools
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from supancl import BadInput, load_encoder
from supancl.core.encoders import sincos_positions
from supancl.runs.formats import FORMATS, identify
from supancl.runs.importing import open_encoder
from supancl.use.export import import_checkpoint
from tests.helpers import fill, mentions, quickly_built
from tests.import_keys import Holder, kept, resnet, shortcut_resnet

DOCS = Path(__file__).parents[2] / "docs" / "import.md"


@pytest.fixture(scope="module", autouse=True)
def _quickly_built() -> Iterator[None]:
    """All weights come from files here."""
    with quickly_built():
        yield


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    """Random values that keep the features finite and that no two batch norms share."""
    if name.endswith("num_batches_tracked"):
        return torch.tensor(7)
    if name.endswith("pos_embed"):
        side = math.isqrt(shape[1] - 1)
        return torch.cat([torch.zeros(1, shape[2]), sincos_positions(side, shape[2])])[None]
    if len(shape) == 1:
        scale = name.endswith(("running_var", "weight"))
        return torch.rand(shape) + 0.5 if scale else torch.randn(shape) / 10
    return fill(torch.empty(shape))


def state_of(name: str, *prefixes: str) -> OrderedDict[str, Tensor]:
    """The kept names with values: random under the prefixes, and elsewhere nothing that could matter."""
    torch.manual_seed(0)
    shapes = kept(name)
    zero = torch.zeros(())
    return OrderedDict(
        (key, drawn(key, shape) if key.startswith(prefixes) else zero.expand(shape)) for key, shape in shapes.items()
    )


def under(state: dict[str, Tensor], prefix: str, *heads: str) -> dict[str, Tensor]:
    names = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
    return {key: value for key, value in names.items() if not key.startswith(heads)} if heads else names


def unpacked(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(*parts)


class SupContrast(Holder):
    """Stem, four layers and the mean of the map, as SupContrast calls them."""

    def forward(self, images: Tensor) -> Tensor:
        maps = self.bn1(self.conv1(images)).relu()
        return self.layer4(self.layer3(self.layer2(self.layer1(maps)))).mean((2, 3))


def vit_small() -> nn.Module:
    norm = functools.partial(nn.LayerNorm, eps=1e-6)
    return timm.models.vision_transformer.VisionTransformer(
        patch_size=16, embed_dim=384, depth=12, num_heads=12, qkv_bias=True, norm_layer=norm, num_classes=0
    )


def lightning(state: dict[str, Tensor]) -> dict[str, Any]:
    return {"epoch": 3, "global_step": 40, "pytorch-lightning_version": "2.6.6", "state_dict": state, "loops": None,
            "callbacks": {}, "optimizer_states": [{"state": {}, "param_groups": []}], "lr_schedulers": []}  # fmt: skip


def facebook(state: dict[str, Tensor]) -> dict[str, Any]:
    return {"epoch": 3, "arch": "resnet18", "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}


class Case(NamedTuple):
    format: str
    online: str  # the prefix as it is in the file
    target: str | None
    architecture: str
    reference: Callable[[], nn.Module]  # the library's own arrangement
    size: int = 64
    heads: tuple[str, ...] = ()
    saved: Callable[[dict[str, Tensor]], Any] = facebook


RESNET18, RESNET50 = resnet, functools.partial(resnet, "resnet50")
CASES = {
    "sup-ancl": Case("sup-ancl", "module.encoder.", "module.target_encoder.", "resnet18", RESNET18,
                     saved=lambda state: {"epoch": 20, "state_dict": state, "optim": {}}),
    "moco": Case("moco", "module.encoder_q.", "module.encoder_k.", "resnet18", RESNET18, heads=("fc.",)),
    "moco-v3": Case("moco-v3", "module.base_encoder.", "module.momentum_encoder.", "resnet18", RESNET18,
                    heads=("fc.",)),
    "moco-v3-vit-small": Case("moco-v3", "module.base_encoder.", "module.momentum_encoder.", "vit-small", vit_small,
                              224, ("head.",)),
    "simsiam": Case("simsiam", "module.encoder.", None, "resnet50", RESNET50, heads=("fc.",)),
    "solo-learn": Case("solo-learn", "backbone.", "momentum_backbone.", "cifar-resnet18-pad2",
                       lambda: resnet(cifar_padding=2), 32, saved=lightning),
    "solo-learn-encoder": Case("solo-learn-encoder", "encoder.", "momentum_encoder.", "cifar-resnet18-pad2",
                               lambda: resnet(cifar_padding=2), 32, saved=lightning),
    "supcontrast": Case("supcontrast", "encoder.module.", None, "cifar-resnet50",
                        lambda: SupContrast(**shortcut_resnet((3, 4, 6, 3), True)), 32,
                        saved=lambda state: {"opt": argparse.Namespace(model="resnet50", lr_decay_epochs=[700]),
                                             "model": state, "optimizer": {}, "epoch": 9}),
    "byol-pytorch": Case("byol-pytorch", "online_encoder.net.", "target_encoder.net.", "resnet18", RESNET18,
                         heads=("fc.",), saved=lambda state: state),
    "mmpretrain": Case("mmpretrain", "backbone.", "target_net.module.0.", "resnet18", RESNET18,
                       saved=lambda state: {"meta": {"mmengine_version": "0.8.3"}, "state_dict": state}),
    "vissl": Case("vissl", "_feature_blocks.", None, "resnet50", RESNET50,
                  saved=lambda state: {"phase_idx": 9, "classy_state_dict": {"base_model": {"model": {
                      "trunk": state, "heads": {}}}}}),
    "torchvision": Case("plain", "", None, "resnet18", RESNET18, heads=("fc.",), saved=lambda state: state),
    "lightly": Case("lightly", "backbone.", "backbone_momentum.", "resnet18",
                    lambda: unpacked(*list(torchvision.models.resnet18().children())[:-1]), saved=lightning),
    "lightly-cifar": Case("lightly", "backbone.", None, "cifar-resnet18-norelu",
                          lambda: unpacked(*shortcut_resnet((2, 2, 2, 2), False).values(), nn.AdaptiveAvgPool2d(1)), 32,
                          saved=lightning),
    "lightly-query": Case("lightly-query", "query_backbone.", "backbone.", "resnet18", RESNET18, saved=lightning),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory) -> tuple[Case, dict[str, Tensor], Path]:
    case = CASES[request.param]
    state = state_of(request.param, case.online, case.target or case.online)
    path = tmp_path_factory.mktemp("checkpoints") / "last.pth.tar"
    torch.save(case.saved(state), path)
    yield case, state, path
    path.unlink()


def by_hand(model: nn.Module, case: Case, state: dict[str, Tensor], prefix: str, images: Tensor) -> Tensor:
    model.load_state_dict(under(state, prefix, *case.heads))
    with torch.no_grad():
        return model.eval()(images).flatten(1)


def same(features: Tensor, expected: Tensor) -> bool:
    return bool((features - expected).abs().max() <= 1e-6 * max(1.0, float(expected.abs().max())))


def test_features_are_those_of_the_librarys_own_model(checkpoint):
    case, state, path = checkpoint
    encoder = open_encoder(path)
    assert not encoder.training
    assert encoder.spec.name == case.architecture
    assert encoder.size == (case.size if case.size in (32, 224) else 224)
    side = 16 if case.size == 32 else case.size  # a ResNet takes any
    images, model = torch.randn(2, 3, side, side), case.reference()
    expected = by_hand(model, case, state, case.online, images)
    with torch.no_grad():
        features = encoder(images)
        assert features.shape == (2, encoder.width)
        assert same(features, expected)
        if case.target is None:
            with pytest.raises(BadInput, match=mentions("target", "branch")):
                open_encoder(path, branch="target")
            return
        average = open_encoder(path, branch="target")(images)
    assert same(average, by_hand(model, case, state, case.target, images))
    assert not same(average, features)  # so that the one could not pass for the other
    assert identify(state, "target").prefix == case.target


def test_what_is_identified_is_said(checkpoint):
    case, state, _ = checkpoint
    assert identify(state) == (case.format, case.online, case.architecture)
    compiled = {f"_orig_mod.{name}": value for name, value in state.items()}
    assert identify(compiled) == (case.format, f"_orig_mod.{case.online}", case.architecture)


def test_every_format_has_a_case():
    covered = {case.format for case in CASES.values()}
    assert {row.name for row in FORMATS} - covered == {"lightly-student"}  # as lightly-query, below
    assert len({row.name for row in FORMATS}) == len(FORMATS)


# --- which branch, which architecture ---------------------------------------------------------------------------------


def on_meta(names: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: torch.empty(shape, device="meta") for name, shape in names.items()}


def test_where_lightly_trains_the_copy_the_copy_is_online():
    names = {name.replace("query_", "student_"): shape for name, shape in kept("lightly-query").items()}
    assert identify(on_meta(names)) == ("lightly-student", "student_backbone.", "resnet18")
    assert identify(on_meta(names), "target").prefix == "backbone."
    teacher = {re.sub("^backbone", "teacher_backbone", name).replace("query_", ""): shape
               for name, shape in kept("lightly-query").items()}  # fmt: skip
    assert identify(on_meta(teacher)) == ("lightly", "backbone.", "resnet18")
    assert identify(on_meta(teacher), "target").prefix == "teacher_backbone."


def test_a_target_alone_is_taken_only_when_asked_for():
    names = {name: shape for name, shape in kept("moco").items() if "encoder_q" not in name}
    with pytest.raises(BadInput, match=mentions("module.encoder_k.", "target", "online")):
        identify(on_meta(names))
    assert identify(on_meta(names), "target") == ("moco", "module.encoder_k.", "resnet18")


def test_statistics_of_a_split_batch_norm_are_averaged(tmp_path):
    split = state_of("lightly-cifar", "backbone.")
    for name, value in split.items():
        if name.startswith("backbone.") and "running" in name:
            split[name] = torch.cat([value + shift / 10 for shift in range(8)])
    torch.save({"state_dict": split}, tmp_path / "x.ckpt")
    joined = open_encoder(tmp_path / "x.ckpt").body.state_dict()
    expected = state_of("lightly-cifar", "backbone.")
    for ours, theirs in (("bn1.running_var", "backbone.1.running_var"),
                         ("layer4.1.bn2.running_mean", "backbone.5.1.bn2.running_mean"),
                         ("layer2.0.downsample.1.running_mean", "backbone.3.0.shortcut.1.running_mean")):  # fmt: skip
        torch.testing.assert_close(joined[ours], expected[theirs] + 0.35)


def test_the_vits_of_moco_v3_and_of_timm():
    names = kept("moco-v3-vit-base")
    assert identify(on_meta(names)) == ("moco-v3", "module.base_encoder.", "timm:vit_base_patch16_224")
    tiny = state_of("timm", "")
    learned = {**tiny, "pos_embed": torch.randn_like(tiny["pos_embed"])}
    assert identify(learned) == ("plain", "", "timm:vit_tiny_patch16_224")
    with pytest.raises(BadInput, match=mentions("MoCo-v3", "width 192")):
        identify(tiny)  # sines and cosines: 12 heads, as solo-learn's vit_tiny for MoCo-v3; or MAE's 3


def test_a_prefix_that_no_format_has_can_be_named(tmp_path):
    state = {f"net.trunk.{name}": value for name, value in resnet().state_dict().items()}
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(BadInput, match=mentions("x.pth", "'net.trunk.'", "format")):
        open_encoder(tmp_path / "x.pth")
    encoder = open_encoder(tmp_path / "x.pth", prefix="net.trunk.")
    assert torch.equal(encoder.body.conv1.weight, state["net.trunk.conv1.weight"])
    with pytest.raises(BadInput, match=mentions("prefix", "trunk.", "net.")):
        open_encoder(tmp_path / "x.pth", prefix="trunk.")


# --- NAME@FILE --------------------------------------------------------------------------------------------------------

NAMED = {
    "torchvision:resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "torchvision:mobilenet_v3_small": lambda: torchvision.models.mobilenet_v3_small(num_classes=10),
    "timm:resnet10t": lambda: timm.create_model("resnet10t", num_classes=10),
    "timm:vit_tiny_patch16_224": lambda: timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=48),
    "timm:test_convnext": lambda: timm.create_model("test_convnext", num_classes=10),
}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("name", NAMED)
def test_a_named_model_with_a_weight_file_gives_the_input_of_its_classifier(name, suffix, tmp_path):
    torch.manual_seed(0)
    model = NAMED[name]().eval()
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"model": {f"module.{key}": value for key, value in model.state_dict().items()}}, file)
    else:
        save_file(model.state_dict(), file)
    encoder = open_encoder(f"{name}@{file}", size=48)
    images, seen = torch.randn(2, 3, 48, 48), []
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    linear.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    with torch.no_grad():
        model(images)
        assert same(encoder(images), seen[0])
    assert encoder.width == linear.in_features


def test_an_imported_encoder_is_an_encoder_of_ours(tmp_path):
    torch.save({"state_dict": state_of("lightly-cifar", "")}, tmp_path / "x.ckpt")
    row = import_checkpoint(tmp_path / "x.ckpt", tmp_path / "new" / "folder", mean=[0.5] * 3, std=[0.5] * 3)
    assert row == {
        "format": "lightly", "prefix": "backbone.", "encoder": "cifar-resnet18-norelu", "width": 512, "channels": 3,
        "size": 32, "mean": [0.5] * 3, "std": [0.5] * 3,
        "out": str(tmp_path / "new" / "folder" / "encoder.safetensors"),
    }  # fmt: skip
    images = torch.randn(2, 3, 32, 32)
    first, second = open_encoder(tmp_path / "x.ckpt"), load_encoder(tmp_path / "new" / "folder")
    third = open_encoder(tmp_path / "new" / "folder" / "encoder.safetensors")
    with torch.no_grad():
        assert torch.equal(first(images), second(images))
        assert torch.equal(first(images), third(images))
    with pytest.raises(BadInput, match=mentions("encoder.safetensors", "out")):
        import_checkpoint(tmp_path / "x.ckpt", tmp_path / "new" / "folder")
    with pytest.raises(BadInput, match=mentions("x.ckpt", "Not a directory", "out")):
        import_checkpoint(tmp_path / "x.ckpt", tmp_path / "x.ckpt")


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    state = dict(resnet().state_dict())
    for name, value in changes.items():
        name = name.replace("__", ".")
        if value is None:
            del state[name]
        else:
            state[name] = value
    return state


def test_the_conversion_of_the_documentation_makes_a_refused_file_readable(place):
    state = {f"backbone.{name}": value for name, value in resnet().state_dict().items()}
    state["classifier.weight"] = torch.zeros(10, 512)
    torch.save({"state_dict": state, "hyper_parameters": functools.partial(print)}, "last.ckpt")
    with pytest.raises(BadInput, match=r"functools\.partial"):
        open_encoder("last.ckpt")
    snippet = re.search(r"```python no-run\n(import torch\n.*?)```", DOCS.read_text(), re.DOTALL)
    assert snippet
    exec(snippet[1], {})
    assert torch.equal(open_encoder("weights.pth").body.conv1.weight, state["backbone.conv1.weight"])


def test_a_grey_encoder_opens_with_its_own_mean_and_std(place):
    torch.save(changed(conv1__weight=torch.randn(64, 1, 7, 7)), "x.pth")
    encoder = open_encoder("x.pth", mean=[0.3], std=[0.2])
    assert encoder(torch.randn(2, 1, 64, 64)).shape == (2, 512)


# --- the documentation ------------------------------------------------------------------------------------------------


def table_row(row: Any) -> str:
    target = ", ".join(f"`{name}`" for name in row.target) or "-"
    online = f"`{row.online}`" if row.online else "none"
    return f"| {row.name} | {online} | {target} |"


def test_the_documented_table_is_the_table():
    lines = DOCS.read_text().splitlines()
    start = lines.index("| Format | Online | Target | State dict | Also in the file | Names taken from |") + 2
    for line, row in zip(lines[start : start + len(FORMATS)], FORMATS, strict=True):
        assert line.startswith(table_row(row))
        assert all(cell.strip() for cell in line.strip("|").split("|"))  # what else the file has, and who wrote it
    assert lines[start + len(FORMATS)] == ""


def test_a_timm_model_gets_the_mean_and_std_that_timm_lists_for_it(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    listed = timm.get_pretrained_cfg(name)
    assert listed is not None
    assert tuple(listed.mean) == (0.5, 0.5, 0.5)  # not ImageNet's
    torch.save(timm.create_model(name, img_size=32, num_classes=0).state_dict(), tmp_path / "weights.pth")
    encoder = open_encoder(f"timm:{name}@{tmp_path / 'weights.pth'}")
    assert (encoder.mean, encoder.std, encoder.size) == (tuple(listed.mean), tuple(listed.std), 32)
    assert open_encoder(f"timm:{name}@{tmp_path / 'weights.pth'}", mean=(0.1, 0.2, 0.3)).mean == (0.1, 0.2, 0.3)
