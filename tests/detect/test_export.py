"""Weights for other libraries: Detectron2's names, shapes and order, and torchvision's own models."""

import shutil
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from supancl.core.encoders import EncoderSpec
from supancl.detect.export import convert_weights, detectron2_settings, export_detector
from supancl.detect.model import Normalization, build_detector, open_body
from supancl.detect.saving import load_detector, save_detector
from supancl.detect.spec import detect_spec
from supancl.errors import BadInput
from supancl.weights.encoder_file import read_safetensors, save_encoder
from tests.files import mentions

from .drawn import SIDE, TINY, narrow_resnet18, nothing_drawn

NORMALIZATION = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLASSES = tuple("abcdefghijklmnopqrst")


def listed():
    lines = (Path(__file__).parent / "detectron2_r50_c4.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    return {name: tuple(map(int, shape.split("x"))) for name, shape in rows}


def saved_detector(path, arch, encoder="resnet18", **overrides):
    spec = detect_spec(arch, {"device": "cpu", **overrides})
    body, described = open_body(f"random:{encoder}")
    detector = build_detector(body, spec, len(CLASSES), NORMALIZATION)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in detector.state_dict().values():
            if value.is_floating_point() and value.ndim < 2:  # matrices and kernels are random as they are
                value.add_(0.001 * torch.randn(value.shape, generator=random))
        for module in detector.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
                module.reset_running_stats()
        picture = torch.rand(2, 3, SIDE, SIDE, generator=random)
        detector.backbone((picture - 0.45) / 0.22)  # statistics that keep the maps in range
        detector.roi_heads.box_predictor.cls_score.weight.mul_(0.01)  # every class is about as likely: all are found
    save_detector(path, detector, described, CLASSES)
    return detector.eval()


def test_every_tensor_of_detectron2_s_r50_c4_is_there(tmp_path):
    saved_detector(tmp_path / "detector.safetensors", "c4", "resnet50")
    with nothing_drawn():
        told = export_detector(str(tmp_path), "detectron2", tmp_path / "d2.pth")
    state = torch.load(tmp_path / "d2.pth", weights_only=True)
    shapes = {name: tuple(value.shape) for name, value in state["model"].items()}
    counters = {name for name in shapes if name.endswith("num_batches_tracked")}
    assert {name: shapes[name] for name in shapes.keys() - counters} == listed()
    assert "matching_heuristics" not in state
    assert told["what"] == "c4"
    settings = (tmp_path / "d2.yaml").read_text()
    for line in ("DEPTH: 50", "NUM_CLASSES: 20", 'FORMAT: "RGB"', "STRIDE_IN_1X1: false", "Res5ROIHeadsExtraNorm"):
        assert line in settings
    assert "PIXEL_MEAN: [123.675, 116.28, 103.53]" in settings


def test_no_tensor_is_lost_or_told_twice():
    for arch in ("c4", "fpn"):
        with nothing_drawn():
            detector = build_detector(open_body("random:resnet18")[0], detect_spec(arch), 20, NORMALIZATION)
        state, what = convert_weights(detector, "detectron2")
        assert what == arch
        assert len(state) == len(detector.state_dict())
        lost = sum(v.numel() for v in detector.state_dict().values()) - sum(v.numel() for v in state.values())
        width = state["roi_heads.box_predictor.bbox_pred.weight"].shape[1]
        assert lost == 4 * (width + 1)  # the box corrections of the background


def test_anchors_are_put_into_detectron2_s_order():
    """An anchor is its width and height: each library lists them in its own order, and each row must follow."""
    spec = detect_spec("c4", {"anchor_sizes": [32, 64], "anchor_ratios": [0.5, 1.0, 2.0]})
    with nothing_drawn():
        detector = build_detector(open_body("random:resnet18")[0], spec, 2, NORMALIZATION)
    ours = detector.rpn.anchor_generator.cell_anchors[0]
    theirs = []  # by size, then by ratio = height / width
    for size in (32, 64):
        for ratio in (0.5, 1.0, 2.0):
            width = (size**2 / ratio) ** 0.5
            theirs.append([-width / 2, -ratio * width / 2, width / 2, ratio * width / 2])
    with torch.no_grad():
        detector.rpn.head.bbox_pred.bias.copy_(ours.flatten())
        detector.rpn.head.cls_logits.bias.copy_(ours[:, 2])
    state, _ = convert_weights(detector, "detectron2")
    deltas = state["proposal_generator.rpn_head.anchor_deltas.bias"].reshape(-1, 4)
    expected = torch.tensor(theirs)
    assert bool(((deltas - expected).abs() <= 0.5).all())  # torchvision rounds its anchors to pixels
    assert bool(((state["proposal_generator.rpn_head.objectness_logits.bias"] - expected[:, 2]).abs() <= 0.5).all())
    assert not bool(((ours - expected).abs() <= 0.5).all())


def test_the_background_moves_to_the_end():
    with nothing_drawn():
        detector = build_detector(open_body("random:resnet18")[0], detect_spec(), 2, NORMALIZATION)
    with torch.no_grad():
        detector.roi_heads.box_predictor.cls_score.bias.copy_(torch.tensor([9.0, 1.0, 2.0]))
        detector.roi_heads.box_predictor.bbox_pred.bias.copy_(torch.arange(12.0))
    state, _ = convert_weights(detector, "detectron2")
    assert state["roi_heads.box_predictor.cls_score.bias"].tolist() == [1.0, 2.0, 9.0]
    assert state["roi_heads.box_predictor.bbox_pred.bias"].tolist() == list(range(4, 12))


def test_the_pyramid_has_detectron2_s_names():
    detector = build_detector(open_body("random:resnet18")[0], detect_spec("fpn"), 2, NORMALIZATION)
    state, _ = convert_weights(detector, "detectron2")
    inner = detector.state_dict()["backbone.fpn.inner_blocks.3.0.weight"]
    assert torch.equal(state["backbone.fpn_lateral5.weight"], inner)
    for name in ("backbone.bottom_up.stem.conv1.weight", "backbone.bottom_up.res5.1.conv2.norm.running_var",
                 "backbone.fpn_output2.bias", "roi_heads.box_head.fc1.weight", "roi_heads.box_head.fc2.bias",
                 "proposal_generator.rpn_head.conv.weight"):  # fmt: skip
        assert name in state, name


def test_torchvision_s_own_detector_loads_the_pyramid_and_finds_the_same(tmp_path):
    anchors = {"anchor_sizes": [32, 64, 128, 256, 512], "anchor_ratios": [0.5, 1.0, 2.0]}
    sizes = {**TINY, **anchors, "pool": 7, "score_threshold": 0.01}
    detector = saved_detector(tmp_path / "detector.safetensors", "fpn", "resnet50", **sizes)
    with nothing_drawn():
        told = export_detector(str(tmp_path), "torchvision", tmp_path / "tv.pth")
        model = torchvision.models.detection.fasterrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=21, min_size=SIDE, max_size=160,
            rpn_pre_nms_top_n_test=200, rpn_post_nms_top_n_test=30, box_score_thresh=0.01, box_detections_per_img=10,
        )  # fmt: skip
    model.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True))
    image = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        (ours,), (theirs,) = detector([image]), model.eval()([image])
    assert told["what"] == "fpn"
    assert len(ours["boxes"]) == len(theirs["boxes"]) > 0
    torch.testing.assert_close(ours["boxes"], theirs["boxes"])
    torch.testing.assert_close(ours["scores"], theirs["scores"])


def test_torchvision_s_parts_load_a_pyramid_of_another_depth(tmp_path):
    detector = saved_detector(tmp_path / "detector.safetensors", "fpn")
    with nothing_drawn():
        export_detector(str(tmp_path), "torchvision", tmp_path / "tv.pth")
        body = torchvision.models.detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, trainable_layers=5, norm_layer=torch.nn.BatchNorm2d
        )
        model = torchvision.models.detection.FasterRCNN(body, 21)
    model.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True))
    kept = detector.state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_torchvision_s_resnet_loads_the_backbone_of_c4(tmp_path):
    detector = saved_detector(tmp_path / "detector.safetensors", "c4")
    told = export_detector(str(tmp_path), "torchvision", tmp_path / "tv.pth")
    model = torchvision.models.resnet18(weights=None)
    missing, unexpected = model.load_state_dict(torch.load(tmp_path / "tv.pth", weights_only=True), strict=False)
    assert (told["what"], missing, unexpected) == ("backbone", ["fc.weight", "fc.bias"], [])
    assert torch.equal(model.layer4[1].conv2.weight, detector.roi_heads.box_head.layer4[1].conv2.weight)


def test_an_encoder_gives_its_backbone(tmp_path):
    encoder = EncoderSpec("resnet18").build()
    save_encoder(tmp_path / "encoder.safetensors", encoder, (), "drawn")
    told = export_detector(str(tmp_path), "detectron2", tmp_path / "d2.pth")
    content = torch.load(tmp_path / "d2.pth", weights_only=True)
    assert told["what"] == "backbone"
    assert content["matching_heuristics"] is True
    assert torch.equal(content["model"]["res3.0.shortcut.norm.weight"], encoder.body.layer2[0].downsample[1].weight)
    assert torch.equal(content["model"]["stem.conv1.weight"], encoder.body.conv1.weight)
    assert "RES2_OUT_CHANNELS: 64" in detectron2_settings(encoder.spec, 0, None)


def test_the_settings_say_what_detectron2_would_take_otherwise():
    """Anchors, pooling and sizes of the recipe; where they are Detectron2's own (C4), the defaults are repeated."""
    c4 = detect_spec("c4", {"anchor_sizes": [16, 32], "pool": 7, "test_size": 256, "max_size": 448, "min_sizes": [256]})
    text = detectron2_settings(EncoderSpec("resnet18"), 3, c4)
    for line in ("SIZES: [[16, 32]]", "POOLER_RESOLUTION: 7", "MIN_SIZE_TEST: 256", "MAX_SIZE_TEST: 448", "DEPTH: 18",
                 "needs one with basic blocks"):  # fmt: skip
        assert line in text
    plain = detectron2_settings(EncoderSpec("resnet50"), 2, detect_spec("c4", {"extra_norm": False}))
    assert 'NAME: "Res5ROIHeads"' in plain
    assert "basic blocks" not in plain
    fpn = detectron2_settings(EncoderSpec("resnet50", mean=(0.5,), std=(0.25,)), 2, detect_spec("fpn"))
    for line in ("SIZES: [[32], [64], [128], [256], [512]]", 'POOLER_TYPE: "ROIAlign"', "POOLER_SAMPLING_RATIO: 2",
                 'NAME: "build_resnet_fpn_backbone"', "PIXEL_MEAN: [127.5, 127.5, 127.5]"):  # fmt: skip
        assert line in fpn
    assert "POOLER_TYPE" not in plain


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("torchvision:wide_resnet50_2", ("DEPTH: 50\n", "NUM_GROUPS: 1\n", "WIDTH_PER_GROUP: 128\n")),
        ("torchvision:resnext101_32x8d", ("DEPTH: 101\n", "NUM_GROUPS: 32\n", "WIDTH_PER_GROUP: 8\n")),
        ("timm:resnet34", ("DEPTH: 34\n", "RES2_OUT_CHANNELS: 64\n")),
    ],
)
def test_the_settings_know_the_width_of_the_resnet(name, told):
    text = detectron2_settings(EncoderSpec(name), 2, None)
    assert all(line in text for line in told)


@pytest.fixture(scope="module")
def narrow_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("saved") / "detector.safetensors"
    with narrow_resnet18():
        saved_detector(file, "c4", **TINY)
    return file


@pytest.fixture
def saved(narrow_file, tmp_path):
    """A detector of few channels that may be changed, and read as long as the test lasts."""
    with narrow_resnet18():
        yield shutil.copy(narrow_file, tmp_path / "detector.safetensors")


def test_what_cannot_be_written_or_read_is_refused(saved, tmp_path):
    with pytest.raises(BadInput, match=mentions("--format", "caffe", "detectron2", "torchvision")):
        export_detector(str(tmp_path), "caffe", tmp_path / "x.pth")
    with pytest.raises(BadInput, match=mentions("x.yaml", ".pth")):
        export_detector(str(tmp_path), "detectron2", tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("mine")
    with pytest.raises(BadInput, match=mentions("x.yaml", "exists")):
        export_detector(str(tmp_path), "detectron2", tmp_path / "x.pth")
    export_detector(str(tmp_path), "torchvision", tmp_path / "x.pth")
    with pytest.raises(BadInput, match=mentions("x.pth", "exists")):
        export_detector(str(tmp_path), "torchvision", tmp_path / "x.pth")
    with pytest.raises(BadInput, match=mentions("no folder", "--out")):
        export_detector(str(tmp_path), "torchvision", tmp_path / "nowhere" / "x.pth")
    save_encoder(tmp_path / "encoder.safetensors", EncoderSpec("resnet18").build(), (), "drawn")
    with pytest.raises(BadInput, match=mentions("encoder.safetensors", "detector")):
        load_detector(tmp_path / "encoder.safetensors")
    with pytest.raises(BadInput, match="no file"):
        load_detector(tmp_path / "gone.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"holds no detector\.safetensors"):
        load_detector(tmp_path / "empty")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema_version": "99"}, ("schema 99", "newer")),
        ({"schema_version": "x"}, ("description", "damaged")),
        ({"classes": "["}, ("description", "damaged")),
        ({"classes": '["a"]'}, ("description", "tensors")),
        ({"spec": '{"iters": 0}'}, ("iters = 0", "at least 1")),
    ],
)
def test_a_damaged_detector_is_refused(saved, changes, told):
    weights, metadata = read_safetensors(saved)
    save_file(weights, saved, metadata={**metadata, **changes})
    with pytest.raises(BadInput, match=mentions(*told)):
        load_detector(saved)
