"""What `supancl evaluate` takes."""

from __future__ import annotations

import argparse

from supancl.cli.checks import check_data, check_encoders, listed
from supancl.cli.choices import SUITE_PROTOCOLS, TABLE_FORMATS
from supancl.cli.flags import add_encoder_flags, add_view_flag, common


def arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="protocol", required=True)

    def add(name: str, text: str, several: bool = False) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = below.add_parser(name, parents=[common()], help=text, description=text)
        add_encoder_flags(made, several)
        return made

    knn = add("knn", "k nearest neighbours among the training images")
    add_one(knn, view=True)
    knn.add_argument("--k", default="20", help="neighbours; several with commas, the first one counts")
    knn.add_argument("--temperature", type=float, default=0.1)
    knn.add_argument("--metric", default="cosine", choices=("cosine", "l2"))
    knn.add_argument("--leave-one-out", action="store_true", help="the judged images compared with one another")
    linear = add("linear", "a linear classifier on frozen features")
    add_one(linear, view=True)
    linear.add_argument("--probe", default="lbfgs", choices=("lbfgs", "sgd"), help="fast and convex, or as the paper")
    linear.add_argument("--augmented", action="store_true", help="sgd on random crops, encoded anew every epoch")
    linear.add_argument("--epochs", type=int, help="of sgd (100); the rate falls at 60%% and 80%%")
    linear.add_argument("--lr", type=float, help="of sgd, at a batch of 256 (30)")
    linear.add_argument("--probe-batch", type=int, help="batch size of sgd (256)")
    linear.add_argument("--seed", type=int, default=0, help="of the part held out of training, and of sgd")
    variance = add("variance", "intra-class variance, effective rank, neural collapse")
    add_one(variance, view=True, splits=("held-out", "test", "train"))
    add_transfer(add("transfer", "L-BFGS transfer (App. E) to one or more data sets", several=True))
    add_few_shot(add("fewshot", "N-way K-shot episodes on one or more data sets", several=True))
    add_finetune(add("finetune", "train encoder and a new classifier together"))
    add_suite(add("suite", "every protocol on every data set that is in a folder", several=True))


def add_one(
    parser: argparse.ArgumentParser, view: bool = False, splits: tuple[str, ...] = ("held-out", "test")
) -> None:
    """What every protocol on one source takes."""
    parser.add_argument("--data", help="a source (default: the run's own)")
    parser.add_argument(
        "--split",
        default="held-out",
        choices=splits,
        help="images judged: val, else test, else a tenth of train; or test",
    )
    if view:
        add_view_flag(parser)


def add_transfer(parser: argparse.ArgumentParser) -> None:
    add_sets(parser)
    parser.add_argument("--metric", choices=("top-1", "mean-per-class"), help="default: the registry's, or top-1")


def add_few_shot(parser: argparse.ArgumentParser) -> None:
    add_sets(parser)
    parser.add_argument("--ways", type=int, default=5, help="classes of an episode")
    parser.add_argument("--shots", default="1,5", help="labelled images of each class; several with commas")
    parser.add_argument("--queries", type=int, default=16, help="images asked about of each class")
    add_fill_flag(parser)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the episodes, which all encoders share")


def add_fill_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fill-queries",
        action="store_true",
        help="classes with few images: queries drawn with replacement, as in the authors' code",
    )


def add_finetune(parser: argparse.ArgumentParser) -> None:
    add_one(parser)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--train-batch", type=int, default=64)
    parser.add_argument("--lr", default="0.01,0.1,1", help="several: compared on held-out training images")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder for the fine-tuned encoder and its classifier")


def add_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", required=True, help="folder with the data sets of the registry")
    parser.add_argument("--out", required=True, help="folder of results; the same one again goes on")
    parser.add_argument("--sets", help="names of the registry, with commas (default: all that are in --root)")
    parser.add_argument("--protocols", default=",".join(SUITE_PROTOCOLS), help=f"of {', '.join(SUITE_PROTOCOLS)}")
    parser.add_argument("--k", type=int, default=20, help="neighbours of knn")
    parser.add_argument("--ways", type=int, default=5)
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--episodes", type=int, default=2000)
    add_fill_flag(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the episodes")


def add_sets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", action="append", default=[], help="a source; may be given several times")
    parser.add_argument("--root", help="folder with the data sets of the registry")
    parser.add_argument("--sets", help="names of the registry, with commas (default: all that are in --root)")
    parser.add_argument("--format", default="text", choices=(*TABLE_FORMATS, "json"), help="of the table")


def check(args: argparse.Namespace) -> None:
    check_encoders(*listed(args.encoder))
    check_data(*listed(getattr(args, "data", None)))
