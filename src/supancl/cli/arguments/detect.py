"""The arguments of `supancl detect train|eval|export`."""

from __future__ import annotations

import argparse

from supancl.cli.choices import VOC_YEARS
from supancl.cli.flags import Override, common_flags

SHORTHANDS = {
    "--arch": ("arch", "c4 (as the paper) or fpn"),
    "--iters": ("iters", "iterations; the schedule scales with them"),
    "--batch-size": ("batch_size", "images per step"),
    "--lr": ("lr", "learning rate at this batch size"),
    "--freeze": ("freeze", "stages that are not trained: stem,layer1,..."),
    "--seed": ("seed", "seed of new layers, order and views"),
    "--device": ("device", "auto, cpu or cuda"),
    "--precision": ("precision", "auto, fp32 or bf16"),
    "--eval-every": ("eval_every", "steps between tests (0: only at the end)"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="action", required=True)
    train = subparsers.add_parser(
        "train", parents=[common_flags()], help="fine-tune a detector from an encoder and test it"
    )
    train.add_argument("encoder", nargs="?", help="a run folder, encoder.safetensors, checkpoint, or random:resnet50")
    add_data(train)
    for flag, (name, text) in SHORTHANDS.items():
        train.add_argument(flag, dest=name, action=Override, metavar="X", help=f"{text} ({name})")
    train.add_argument("--set", dest="set", action=Override, metavar="FIELD=VALUE", help="any field of the recipe")
    train.set_defaults(overrides={})
    train.add_argument("--seeds", type=int, default=1, metavar="N", help="N runs with seeds 0, 1, ..., mean and spread")
    train.add_argument("--resume", action="store_true", help="continue the run in --out")
    train.add_argument("--out", help="folder of the run (default: runs/detect-NNN)")
    test = subparsers.add_parser("eval", parents=[common_flags()], help="test a trained detector")
    test.add_argument("detector", help="the folder of a detector's run, or its detector.safetensors")
    add_data(test)
    test.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    test.add_argument("--out", help="folder for the picture and the scores (default: the run folder)")
    export = subparsers.add_parser("export", parents=[common_flags()], help="export weights for torchvision")
    export.add_argument("detector", help="a detector's run, or an encoder (exports the backbone)")
    export.add_argument("--out", required=True, metavar="FILE", help="a .pth file")


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="a VOC root (it holds VOCdevkit/), COCO's folder, or a COCO JSON to train on")
    parser.add_argument("--year", choices=VOC_YEARS, help="lists of VOC: both years, or one of them")
    parser.add_argument("--test", help="a COCO JSON to test on")
    parser.add_argument("--images", help="the folder of a COCO JSON's images (default: the JSON's folder)")
