"""What `supancl detect train|eval|compare|crops|export` takes."""

from __future__ import annotations

import argparse

from supancl.cli.choices import DETECTOR_FORMATS, VOC_YEARS
from supancl.cli.flags import Override, common

SHORTHANDS = {
    "--arch": ("arch", "c4 (as the paper) or fpn"),
    "--iters": ("iters", "iterations; the schedule is scaled with them"),
    "--batch-size": ("batch_size", "images per step"),
    "--lr": ("lr", "learning rate at this batch size"),
    "--freeze": ("freeze", "stages that are not trained, with commas: stem,layer1,..."),
    "--seed": ("seed", "of new layers, order and views"),
    "--device": ("device", "auto, cpu or cuda"),
    "--precision": ("precision", "auto, fp32 or bf16"),
    "--eval-every": ("eval_every", "steps between tests (0: one, at the end)"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="what", required=True)
    train = below.add_parser("train", parents=[common()], help="fine-tune a detector from an encoder, and test it")
    train.add_argument("encoder", nargs="?", help="a run folder, encoder.safetensors, checkpoint, or random:resnet50")
    add_data(train)
    for flag, (name, text) in SHORTHANDS.items():
        train.add_argument(flag, dest=name, action=Override, metavar="X", help=f"{text} ({name})")
    train.add_argument("--set", dest="set", action=Override, metavar="FIELD=VALUE", help="any field of the recipe")
    train.set_defaults(overrides={})
    train.add_argument("--seeds", type=int, default=1, metavar="N", help="N runs with seeds 0, 1, ..., mean and spread")
    train.add_argument("--resume", action="store_true", help="continue the run in --out")
    train.add_argument("--out", help="folder of the run (default: runs/detect-NNN)")
    test = below.add_parser("eval", parents=[common()], help="test a trained detector")
    test.add_argument("detector", help="the folder of a detector's run, or its detector.safetensors")
    add_data(test)
    test.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    test.add_argument("--out", help="folder for the picture and the scores (default: the run's own)")
    compare = below.add_parser("compare", parents=[common()], help="several encoders and seeds in one table and figure")
    compare.add_argument("runs", nargs="+", metavar="[NAME=]RUN", help="folders of runs, or of several seeds")
    compare.add_argument("--out", required=True, help="folder for compare.json, compare.md, curves.png, classes.png")
    cut = below.add_parser("crops", parents=[common()], help="annotated objects as a folder of images to pretrain on")
    add_data(cut)
    cut.add_argument("--out", required=True, help="the folder: train/CLASS/*.jpg and val/CLASS/*.jpg")
    cut.add_argument("--margin", type=float, default=0.1, help="surroundings, as a share of the box (default: 0.1)")
    cut.add_argument("--least", type=int, default=16, metavar="PX", help="boxes with a shorter side are left out")
    cut.add_argument("--difficult", action="store_true", help="VOC's difficult boxes as well")
    export = below.add_parser("export", parents=[common()], help="write weights that other libraries load by name")
    export.add_argument("detector", help="a detector's run, or an encoder (then the backbone is written)")
    export.add_argument("--format", required=True, choices=DETECTOR_FORMATS)
    export.add_argument("--out", required=True, metavar="FILE", help="a .pth file")


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="a VOC root (it holds VOCdevkit/), COCO's folder, or a COCO JSON to train on")
    parser.add_argument("--year", choices=VOC_YEARS, help="lists of VOC: trainval of both years, or of one")
    parser.add_argument("--test", help="a COCO JSON to test on")
    parser.add_argument("--images", help="the folder of a COCO JSON's images (default: beside it)")
