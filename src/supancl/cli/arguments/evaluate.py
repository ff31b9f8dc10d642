"""The arguments of `supancl evaluate`."""

from __future__ import annotations

import argparse

from supancl.cli.checks import as_list, check_data, check_encoders
from supancl.cli.choices import SUITE_PROTOCOLS, TABLE_FORMATS
from supancl.cli.flags import add_encoder_flags, add_view_flag, common_flags


def arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="protocol", required=True)

    def add(name: str, text: str, multiple: bool = False) -> argparse.ArgumentParser:
        subparser: argparse.ArgumentParser = subparsers.add_parser(
            name, parents=[common_flags()], help=text, description=text
        )
        add_encoder_flags(subparser, multiple)
        return subparser

    knn = add("knn", "k nearest neighbours among the training images", multiple=True)
    add_source_flags(knn, view=True)
    add_format_flag(knn)
    knn.add_argument(
        "--k",
        help="neighbours; of several, comma-separated, the first is the result "
        "(default: 20, or a quarter of the references per class if that is less)",
    )
    knn.add_argument("--temperature", type=float, default=0.1)
    knn.add_argument("--metric", default="cosine", choices=("cosine", "l2"))
    knn.add_argument(
        "--leave-one-out", action="store_true", help="use the evaluated images as references for one another"
    )
    add_baselines_flag(knn)
    linear = add("linear", "a linear classifier on frozen features", multiple=True)
    add_source_flags(linear, view=True)
    add_format_flag(linear)
    linear.add_argument(
        "--probe", default="lbfgs", choices=("lbfgs", "sgd"), help="fast and convex, or as in the paper"
    )
    linear.add_argument("--augmented", action="store_true", help="sgd on random crops, encoded again every epoch")
    linear.add_argument("--epochs", type=int, help="epochs of sgd (100); the learning rate drops at 60%% and 80%%")
    linear.add_argument("--lr", type=float, help="learning rate of sgd for a batch of 256 (30)")
    linear.add_argument("--probe-batch", type=int, help="batch size of sgd (256)")
    linear.add_argument("--seed", type=int, default=0, help="seed of the images held out of training, and of sgd")
    add_baselines_flag(linear)
    variance = add("variance", "intra-class variance, effective rank, neural collapse")
    add_source_flags(variance, view=True, splits=("held-out", "test", "train"))
    add_transfer(add("transfer", "L-BFGS transfer (App. E) to one or more data sets", multiple=True))
    add_few_shot(add("fewshot", "N-way K-shot episodes on one or more data sets", multiple=True))
    add_finetune(add("finetune", "train the encoder and a new classifier together"))
    add_suite(add("suite", "every protocol on every data set in a folder", multiple=True))


def add_source_flags(
    parser: argparse.ArgumentParser, view: bool = False, splits: tuple[str, ...] = ("held-out", "test")
) -> None:
    """Add the flags of every protocol that uses one source."""
    parser.add_argument("--data", help="a source (default: the run's data)")
    parser.add_argument(
        "--split",
        default="held-out",
        choices=splits,
        help="evaluated images; held-out: val, else test, else a tenth of train",
    )
    if view:
        add_view_flag(parser)


def add_baselines_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-baselines", action="store_true", help="do not compare with random weights and with the run's start"
    )


def add_transfer(parser: argparse.ArgumentParser) -> None:
    add_data_set_flags(parser)
    add_baselines_flag(parser)
    parser.add_argument("--metric", choices=("top-1", "mean-per-class"), help="default: the benchmark's, or top-1")


def add_few_shot(parser: argparse.ArgumentParser) -> None:
    add_data_set_flags(parser)
    parser.add_argument("--ways", type=int, default=5, help="classes per episode")
    parser.add_argument("--shots", default="1,5", help="labelled images per class, comma-separated")
    parser.add_argument("--queries", type=int, default=16, help="query images per class")
    add_fill_flag(parser)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the episodes, which are the same for every encoder"
    )


def add_fill_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fill-queries",
        action="store_true",
        help="draw queries of classes with few images with replacement, as in the authors' code",
    )


def add_finetune(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser)
    add_baselines_flag(parser)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--train-batch", type=int, default=64)
    parser.add_argument("--lr", default="0.01,0.1,1", help="of several, the best on held-out training images is used")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--views", default="crops", choices=("crops", "pretraining"), help="pretraining: colours too")
    parser.add_argument("--freeze-norm", action="store_true", help="batch norm keeps the encoder's statistics")
    parser.add_argument("--probe-first", action="store_true", help="start from the linear classifier on the encoder")
    parser.add_argument("--out", help="folder for the fine-tuned encoder and its classifier")


def add_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", required=True, help="folder with benchmark data sets")
    parser.add_argument("--out", required=True, help="folder of results; an existing one is continued")
    parser.add_argument("--sets", help="names of benchmarks, comma-separated (default: all in --root)")
    parser.add_argument("--protocols", default=",".join(SUITE_PROTOCOLS), help=f"of {', '.join(SUITE_PROTOCOLS)}")
    parser.add_argument("--k", type=int, default=20, help="neighbours of knn")
    parser.add_argument("--ways", type=int, default=5)
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--episodes", type=int, default=2000)
    add_fill_flag(parser)
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes")


def add_data_set_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", action="append", default=[], help="a source; may be given several times")
    parser.add_argument("--root", help="folder with benchmark data sets")
    parser.add_argument("--sets", help="names of benchmarks, comma-separated (default: all in --root)")
    add_format_flag(parser)


def add_format_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", default="text", choices=(*TABLE_FORMATS, "json"), help="format of the table of several encoders"
    )


def check(args: argparse.Namespace) -> None:
    check_encoders(*as_list(args.encoder))
    check_data(*as_list(getattr(args, "data", None)))
