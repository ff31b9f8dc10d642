"""How each table of the paper is laid out, and which of its rows a run belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from supancl.core.losses import Align
from supancl.core.methods import METHODS
from supancl.errors import BadInput, did_you_mean
from supancl.paper.numbers import PAPER, PaperTable
from supancl.paper.tables.runs import package_recipe
from supancl.recipes import Recipe
from supancl.recipes.plugins import has_plugin_section

NO_PAPER_ROW = ""  # the row of a run that belongs in a table for which the paper has no row

METHOD_TITLES = {
    "simclr": "SimCLR",
    "supcon": "SupCon",
    "moco2": "MoCo-v2",
    "supmoco": "SupMoCo",
    "moco3": "MoCo-v3",
    "simsiam": "SimSiam",
    "supsiam": "SupSiam†",
    "byol": "BYOL",
    "supbyol": "SupBYOL†",
    "crossentropy": "cross-entropy",
}
POOL_TITLES = {"queue": "Class-agnostic", "class-queues": "Class-wise", "prototypes": "Learnable", "none": "none"}
COLUMN_TITLES = {
    "ssl": "l_ssl",
    "sup": "l_sup",
    "within": "S_W",
    "ratio": "S_W/S_T %",
    "knn": "k-NN",
    "linear": "Linear",
    "ap": "VOC AP",
    "ap50": "VOC AP50",
    "collapsed": "Collapse",
    "rank": "Avg.Rank",
    "average": "Avg",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "dtd": "DTD",
    "food101": "Food",
    "mit67": "MIT67",
    "sun397": "SUN397",
    "caltech101": "Caltech",
    "cub200": "CUB200",
    "dogs": "Dogs",
    "flowers102": "Flowers",
    "pets": "Pets",
    "aircraft": "Aircraft",
    "fc100": "FC100",
    "fungi": "Fungi",
    "omniglot": "Omniglot",
    "traffic-signs": "Traffic Signs",
}
DECIMALS = {"ssl": 4, "sup": 4, "within": 3}
UNMARKED = ("ssl", "sup", "within", "ratio", "collapsed")  # for these no value is better than another
YES, NO = "✓", "✗"


class Section(NamedTuple):
    """A section of a table with its rows; `accepts` says whether a run belongs in it."""

    key: str = ""
    title: str = ""
    accepts: Callable[[Recipe | None], bool] = lambda recipe: True


@dataclass(frozen=True)
class Layout:
    """A table: the cells left of the numbers, and where a run belongs.

    `row_of` returns the paper's row for a run, NO_PAPER_ROW if there is none, None if the run does not belong in the
    table; `head_of` returns the cells left of the numbers for a run, `row_head` those for a row of the paper.
    """

    name: str
    title: str
    setting: str
    heads: tuple[str, ...]
    row_of: Callable[[Recipe], str | None]
    head_of: Callable[[Recipe], tuple[str, ...]]
    row_head: Callable[[str], tuple[str, ...]]
    requirement: str
    sections: tuple[Section, ...] = (Section(),)
    by_method: bool = False  # Table H.1: a column per method instead of a row
    remark: str = ""  # a note on comparing our numbers with the paper's
    probe: str = "lbfgs"  # of linear accuracy, if a run has both

    @property
    def paper(self) -> PaperTable:
        return PAPER[self.name]

    def column_title(self, column: str) -> str:
        if self.by_method:
            return METHOD_TITLES[column]
        if self.name == "4" and column == "linear":
            return "Top-1"
        return COLUMN_TITLES.get(column.partition(":")[2] or column, column)

    def line_name(self, head: tuple[str, ...]) -> str:
        """A line in words, for the notes: the method, or what varies and its value."""
        if self.heads[0] == "Method":
            return head[0]
        return ", ".join(f"{title} {cell}" for title, cell in zip(self.heads, head, strict=True) if cell)


# --- which row a run belongs to ---------------------------------------------------------------------------------------


def is_published(recipe: Recipe) -> bool:
    """Whether loss, pool and branches equal those of the package's recipe, or else of the method."""
    if has_plugin_section(recipe):
        return False
    if (original := package_recipe(recipe)) is not None:
        return (recipe.loss, recipe.pool, recipe.branches) == (original.loss, original.pool, original.branches)
    row = METHODS.get(recipe.method)
    fields = (recipe.loss, recipe.pool.kind, recipe.branches.target)
    return row is not None and fields == (row.loss, row.pool.kind, row.branches.target)


def is_vit(recipe: Recipe) -> bool:
    return "vit" in recipe.encoder.name


def is_toy(recipe: Recipe | None) -> bool:
    return recipe is not None and recipe.name.startswith("toy.")


def by_method(recipe: Recipe, vit: bool = False) -> str:
    original = package_recipe(recipe)
    # leaves out imagenet100.supsiam-256 and rows of the batch size study
    is_standard = recipe.name.partition(".")[2] in ("", recipe.method)
    is_standard = is_standard and (original is None or original.train.batch_size == recipe.train.batch_size)
    return recipe.method if is_standard and is_vit(recipe) == vit and is_published(recipe) else NO_PAPER_ROW


def is_siam(recipe: Recipe) -> bool:
    """SupSiam and SimSiam, whatever their alpha and their pool."""
    return type(recipe.loss) is Align and recipe.branches.target == "stop-gradient" and not has_plugin_section(recipe)


def has_usual_alpha(recipe: Recipe) -> bool:
    original = package_recipe(recipe)
    usual = original.loss.alpha if original is not None and isinstance(original.loss, Align) else 0.5
    return isinstance(recipe.loss, Align) and recipe.loss.alpha == usual


def by_alpha(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align):
        return None
    usual = recipe.loss.samples is None and (recipe.pool.kind == "queue" or recipe.loss.alpha == 1)
    return f"{recipe.loss.alpha:g}" if is_siam(recipe) and usual else NO_PAPER_ROW


def by_alpha_of_toy(recipe: Recipe) -> str | None:
    return by_alpha(recipe) if is_toy(recipe) else None


def by_pool(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align) or not recipe.loss.supervised:
        return None
    usual = is_siam(recipe) and recipe.loss.samples is None and has_usual_alpha(recipe)
    key = f"{recipe.pool.kind} {recipe.pool.size}" if recipe.pool.kind == "class-queues" else recipe.pool.kind
    return key if usual else NO_PAPER_ROW


def by_positives(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align) or not recipe.loss.supervised or recipe.pool.kind == "none":
        return None
    usual = is_siam(recipe) and recipe.pool.kind == "queue" and has_usual_alpha(recipe)
    return str(recipe.loss.samples or "all") if usual else NO_PAPER_ROW


def by_batch(recipe: Recipe) -> str:
    pooled = recipe.method == "supcon" and recipe.pool.kind == "queue"
    usual = is_published(recipe) or (pooled and recipe.loss.kind == "contrast")
    return f"{recipe.train.batch_size} {recipe.method}{'-pool' if pooled else ''}" if usual else NO_PAPER_ROW


def by_collapse_cell(recipe: Recipe) -> str | None:
    if not isinstance(recipe.loss, Align) or not recipe.loss.supervised:
        return None
    return collapse_cell(recipe) if type(recipe.loss) is Align and not has_plugin_section(recipe) else NO_PAPER_ROW


def collapse_cell(recipe: Recipe) -> str:
    pool, ema = recipe.pool.kind != "none", recipe.branches.target == "momentum"
    return f"{'pool' if pool else 'none'} {'ema' if ema else 'none'}"


def by_column(recipe: Recipe) -> str | None:
    return recipe.method if recipe.method in PAPER["H.1"].columns and not has_plugin_section(recipe) else None


# --- cells left of the numbers ----------------------------------------------------------------------------------


def method_head(method: str) -> tuple[str, ...]:
    row = METHODS[method]
    ticks = (row.loss.kind == "contrast", row.loss.supervised, row.branches.target == "momentum")
    return METHOD_TITLES.get(method, method), *(YES if on else "" for on in ticks)


def method_head_of(recipe: Recipe) -> tuple[str, ...]:
    ticks = (recipe.loss.kind == "contrast", recipe.loss.supervised, recipe.branches.target == "momentum")
    return METHOD_TITLES.get(recipe.method, recipe.method), *(YES if on else "" for on in ticks)


def bare_head(method: str) -> tuple[str, ...]:
    return method_head(method)[:1]


def bare_head_of(recipe: Recipe) -> tuple[str, ...]:
    return method_head_of(recipe)[:1]


def alpha_head(row: str) -> tuple[str, ...]:
    return (f"{float(row):.1f}",)


def alpha_head_of(recipe: Recipe) -> tuple[str, ...]:
    assert isinstance(recipe.loss, Align)
    return (
        f"{recipe.loss.alpha:.1f}" if round(recipe.loss.alpha, 1) == recipe.loss.alpha else f"{recipe.loss.alpha:g}",
    )


def pool_head(row: str) -> tuple[str, ...]:
    kind, _, size = row.partition(" ")
    return POOL_TITLES[kind], {"queue": "8192", "prototypes": "100"}.get(kind, f"{size} x 100")


def pool_head_of(recipe: Recipe) -> tuple[str, ...]:
    kind, size = recipe.pool.kind, recipe.pool.size
    sizes = {"queue": str(size), "class-queues": f"{size} x classes", "prototypes": "classes"}
    return POOL_TITLES.get(kind, kind), sizes.get(kind, "-")


def positives_head_of(recipe: Recipe) -> tuple[str, ...]:
    assert isinstance(recipe.loss, Align)
    return (str(recipe.loss.samples or "all"),)


def batch_head(row: str) -> tuple[str, ...]:
    size, _, model = row.partition(" ")
    return size, f"{METHOD_TITLES[model.removesuffix('-pool')].rstrip('†')}{'*' if model.endswith('-pool') else ''}"


def batch_head_of(recipe: Recipe) -> tuple[str, ...]:
    pooled = recipe.method == "supcon" and recipe.pool.kind != "none"
    title = METHOD_TITLES.get(recipe.method, recipe.method).rstrip("†")
    return str(recipe.train.batch_size), f"{title}{'*' if pooled else ''}"


def cell_head(row: str) -> tuple[str, ...]:
    return tuple(NO if word == "none" else YES for word in row.split())


def cell_head_of(recipe: Recipe) -> tuple[str, ...]:
    return cell_head(collapse_cell(recipe))


def pair_head(row: str) -> tuple[str, ...]:
    return tuple(COLUMN_TITLES.get(name, name) for name in row.split())


RESNET = "ImageNet-100, ResNet-50, 200 epochs, batch 128, mean of three seeds"
ALIGN = "SimSiam, SupSiam, BYOL and SupBYOL have an alpha"
POOLED = "SupSiam and SupBYOL have a supervised target"
METHOD_HEADS = ("Method", "CL", "Sup", "EMA")
SHOTS = (Section("5w1s", "5-way 1-shot"), Section("5w5s", "5-way 5-shot"))
TOY_AND_REAL = (
    Section("toy", "Toy dataset", is_toy),
    Section("imagenet100", "ImageNet-100 (ours: own data)", lambda recipe: not is_toy(recipe)),
)

_ALPHA = partial(
    Layout, heads=("alpha",), row_of=by_alpha, head_of=alpha_head_of, row_head=alpha_head, requirement=ALIGN
)
_METHOD = partial(
    Layout,
    heads=METHOD_HEADS,
    row_of=by_method,
    head_of=method_head_of,
    row_head=method_head,
    requirement="every method has a row",
)

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        _ALPHA(
            "1",
            "SupSiam by alpha: losses, variance, k-NN and linear accuracy",
            f"toy data (App. B); {RESNET}",
            sections=TOY_AND_REAL,
            remark="S_W and S_T of the toy study and, as we read it, of the paper: projector features of training "
            "images",
        ),
        _ALPHA(
            "2",
            "transfer to toy classes by alpha",
            "toy data (App. B)",
            row_of=by_alpha_of_toy,
            requirement="it needs a toy study (supancl paper toy)",
        ),
        _ALPHA("3", "fine-grained transfer by alpha", RESNET),
        _METHOD(
            "4",
            "linear accuracy and object detection",
            f"{RESNET}; detection on VOC",
            heads=("Method",),
            head_of=bare_head_of,
            row_head=bare_head,
            probe="sgd",
        ),
        _METHOD("5", "transfer to 11 data sets", RESNET),
        _METHOD("6", "few-shot classification on 8 data sets", f"{RESNET}; 2000 episodes", sections=SHOTS),
        Layout(
            "7", "transfer by pool design", RESNET, ("Target Pool", "Size"), by_pool, pool_head_of, pool_head, POOLED
        ),
        Layout(
            "8",
            "target pool, momentum branch and collapse",
            "CIFAR-100, ResNet-18",
            ("Pool", "EMA"),
            by_collapse_cell,
            cell_head_of,
            cell_head,
            POOLED,
        ),
        _ALPHA("F.1", "transfer by alpha", RESNET),
        Layout(
            "F.2",
            "transfer by number of positives M",
            RESNET,
            ("M",),
            by_positives,
            positives_head_of,
            lambda row: (row,),
            f"{POOLED}, and M is drawn from a pool",
        ),
        Layout(
            "F.3",
            "transfer by batch size and memory bank (*)",
            "ImageNet-100, ResNet-50, 200 epochs, three seeds",
            ("Bsz", "Model"),
            by_batch,
            batch_head_of,
            batch_head,
            "every method has a row",
        ),
        _METHOD(
            "G.1",
            "transfer to 11 data sets, ViT-Small",
            "ImageNet-100, ViT-Small, 200 epochs, batch 256",
            row_of=partial(by_method, vit=True),
        ),
        Layout(
            "H.1",
            "linear accuracy of pretraining on CIFAR",
            "CIFAR ResNet-18, 1000 epochs, batch 256",
            ("Pretext", "Downstream"),
            by_column,
            lambda recipe: (recipe.name.split(".")[0], ""),
            pair_head,
            f"its columns are {', '.join(PAPER['H.1'].columns)}",
            by_method=True,
        ),
    )
}


def table_name(text: str) -> str:
    """The paper's name of a table, for any spelling of it.

    >>> table_name("table5"), table_name("Table 5"), table_name("f1"), table_name("F.1")
    ('5', '5', 'F.1', 'F.1')
    """
    short = re.sub(r"^tab(le)?|[\s._-]", "", text.strip().lower())
    short_names = {name.lower().replace(".", ""): name for name in LAYOUTS}
    if short not in short_names:
        requested = re.sub(r"^TAB(LE)?\s*", "", text.strip().upper())
        raise BadInput(f"unknown table {text!r}{did_you_mean(requested, LAYOUTS)}")
    return short_names[short]
