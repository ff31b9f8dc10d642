"""A loss or a pool of one's own: examples/own_method.py as the command line, runs that are read back, and refusals."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from supancl import (
    RECIPES,
    Align,
    BadInput,
    Contrast,
    CrossEntropy,
    EncoderSpec,
    Interrupted,
    Pool,
    PoolSpec,
    Queue,
    Reporter,
    Terms,
    pretrain,
    recipe,
    register,
    register_encoder,
)
from supancl.core.encoders import BUILDERS
from supancl.core.pools import Stored
from supancl.paper.tables.layouts import LAYOUTS, NO_PAPER_ROW
from supancl.recipes import plugin_files
from supancl.recipes import plugins as own
from supancl.sweeps.runner import _failed_to_start
from supancl.training.trainer import Trainer
from supancl.weights.run_folder import RunFolder
from tests.files import archive, assert_mentions, assert_refused, mentions, noise, supancl
from tests.tiny import tiny_data, tiny_recipe

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_method.py"


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(own, "REGISTERED", {})
    recipes = dict(RECIPES)
    yield
    for name in RECIPES.keys() - recipes.keys():
        del RECIPES[name]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def run_shell(script, folder, environment):
    return subprocess.run(
        ["bash", "-ec", script], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_the_page_adds_a_loss_a_pool_an_encoder_and_a_benchmark_in_sixty_lines():
    shown = blocks("extending.md", "python")
    assert len(shown) == 4
    assert EXAMPLE.read_text().startswith("\n\n".join(shown))
    assert sum(block.count("\n") for block in (*shown, *blocks("extending.md", "bash"))) <= 60


def with_few_images(script):
    """The script of a page, made quick; `make test-docs` runs the pages as they are."""
    assert " --epochs 1 " in script
    return script.replace(" --epochs 1 ", " --epochs 1 --set data.limit=128 ")


def draw_shapes(folder):
    """40, 10 and 10 squares and discs."""
    folder.mkdir(parents=True)
    rows, random = [], np.random.default_rng(0)
    for number in range(60):
        image = Image.new("L", (16, 16))
        corner = random.integers(0, 8, 2).tolist()
        draw = (ImageDraw.Draw(image).rectangle, ImageDraw.Draw(image).ellipse)[number % 2]
        draw([*corner, corner[0] + 6, corner[1] + 6], fill=255)
        image.save(folder / f"{number}.png")
        split = "train" if number < 40 else "val" if number < 50 else "test"
        rows.append(f"{split} {number}.png {('square', 'disc')[number % 2]}")
    (folder / "labels.txt").write_text("\n".join(rows))


@pytest.fixture(scope="module")
def made(tmp_path_factory, forks):
    """The page's file and the folders that its commands have made."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "own_method.py").write_text("\n\n".join(blocks("extending.md", "python")))
    draw_shapes(folder / "DATA" / "shapes")
    (script,) = blocks("extending.md", "bash")
    done = run_shell(with_few_images(script), folder, forks)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, done.stdout


def test_every_command_of_the_page_runs(made):
    folder, told = made
    kept = json.loads((folder / "runs" / "spread" / "recipe.json").read_text())
    assert kept["recipe"]["loss"] == {"kind": "spread", "weight": 3.0}
    assert kept["plugins"] == [str(folder / "own_method.py")]
    kept = json.loads((folder / "runs" / "halved" / "recipe.json").read_text())["recipe"]
    assert (kept["pool"]["kind"], kept["encoder"]["name"]) == ("halved", "patches")
    assert "evaluate knn runs/spread --plugin own_method.py" in told
    assert re.search(r"mine\.halved .*\d", told)
    assert "shapes" in told


def test_the_commands_of_two_methods_with_seeds_run(tmp_path, forks):
    (script,) = (block for block in blocks("evaluate.md", "bash") if "for seed" in block)
    archive(tmp_path / "few.npz", test_images=noise(20, 8, 8, seed=1), test_labels=np.arange(20) % 2)
    script = with_few_images(script).replace("--data digits", "--data few.npz")
    assert "few.npz" in script
    done = run_shell(script, tmp_path, forks)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "digits.supsiam (n = 3)" in done.stdout


@pytest.mark.parametrize(
    ("gave", "told"),
    [
        (None, ("reader", "NoneType", "(split, file, class)")),
        ([("train", "a.png")], ("reader", "('train', 'a.png')", "(split, file, class)")),
        ([("tset", "a.png", "cat")], ("tset", "train", "val", "test", "trainval")),
    ],
)
def test_a_reader_of_ones_own_that_lists_no_images_is_named(gave, told, tmp_path):
    with pytest.raises(BadInput, match=mentions("mine", *told)):
        own._listing_reader("mine", lambda folder: gave)(tmp_path)


def test_a_run_on_a_benchmark_of_ones_own_keeps_its_plugin(monkeypatch):
    monkeypatch.setattr(own, "REGISTERED_BENCHMARKS", {"shapes"})
    monkeypatch.setattr(plugin_files, "LOADED_FILES", [Path("mine.py")])
    usual = recipe("digits.supsiam")
    assert own.required_plugins(usual) == []
    assert own.required_plugins(usual.with_set({"data.source": "shapes@DATA"})) == ["mine.py"]


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "knn", "runs/spread"),
        ("embed", "runs/halved", "--data", "digits", "--out", "features.npz"),
        ("pretrain", "--resume", "--out", "runs/spread"),
        ("paper", "figure", "3", "runs/spread"),
    ],
)
def test_without_the_plugin_the_file_is_named(made, words, monkeypatch, capsys):
    monkeypatch.chdir(made[0])
    said = supancl(capsys, *words)
    assert said.code == 2
    assert_mentions(said.err, f"--plugin {made[0] / 'own_method.py'}")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "script",
    [
        "supancl evaluate knn runs/halved --plugin own_method.py",
        "supancl embed runs/halved --data shapes@DATA --out features.npz --plugin own_method.py",
        "supancl data check shapes --root DATA --plugin own_method.py",
        "supancl recipes mine.halved --plugin own_method.py",
        "supancl paper table 7 runs/halved --plugin own_method.py",
        "python own_method.py evaluate knn runs/spread",
    ],
)
def test_the_plugin_reaches_the_command(made, script, forks):
    folder, _ = made
    if script.startswith("python"):
        (folder / "own_method.py").write_text(EXAMPLE.read_text())  # with its last lines it is the command line itself
    done = run_shell(script, folder, forks)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, ("no such file",)),
        ("import torch\n\nx = (\n", ("line 3", "SyntaxError")),
        ("import supancl\n\nsupancl.nothing\n", ("line 3", "AttributeError")),
        ("import not_there_at_all\n", ("line 1", "ModuleNotFoundError")),
        ("import supancl\nsupancl.register(supancl.Align)\n", ("line 2", "Align", "loss.kind", "'align'")),
        ("import supancl\nsupancl.register_encoder('cnn', None)\n", ("line 2", "cnn")),
        (
            "import supancl\nrow = supancl.Benchmark('T', 2, (), '', '')\nsupancl.register_benchmark('mine', row)\n",
            ("line 3", "mine", "split="),
        ),
        (
            "import supancl\nrow = supancl.Benchmark('T', 2, (), '', '')\nsupancl.register_benchmark('pets', row)\n",
            ("line 3", "pets"),
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_line_with_file_and_line(text, told, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plugin_files, "LOADED_FILES", [])
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    said = supancl(capsys, "recipes", "--plugin", tmp_path / "mine.py")
    assert said.code == 2
    assert f"--plugin {tmp_path / 'mine.py'}: " in said.err
    assert_refused(said, *told)


def test_a_plugin_that_calls_the_command_line_is_refused_before_anything_is_done(tmp_path, forks):
    (tmp_path / "mine.py").write_text("from supancl.cli import entry\n\nentry()\n")
    done = run_shell("supancl pretrain digits.supsiam --epochs 1 --out run --plugin mine.py", tmp_path, forks)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert_mentions(done.stderr, "--plugin mine.py", "supancl", "loaded")
    assert not (tmp_path / "run").exists()


def test_a_plugin_that_is_no_python_file_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("x = 1")
    said = supancl(capsys, "recipes", "--plugin", tmp_path / "mine.txt")
    assert (said.code, "must end in .py" in said.err) == (2, True)


def test_an_encoder_that_gives_no_vectors_is_refused(monkeypatch):
    monkeypatch.setitem(BUILDERS, "maps", None)  # forgotten after the test
    monkeypatch.setitem(own.REGISTERED, ("encoder", "maps"), None)
    register_encoder("maps", lambda spec: torch.nn.Conv2d(spec.channels, 4, 3))
    with pytest.raises(BadInput, match=mentions("maps", "(4, 6, 6)")):
        EncoderSpec("maps", channels=1, size=8, mean=(0.5,), std=(0.5,)).build()


@dataclass(frozen=True)
class Distant(Align):
    """Told apart from Align by its value at every step."""

    kind: str = "distant"

    def distance(self, anchors, targets):
        return 100 + super().distance(anchors, targets)


class StopAt(Reporter):
    def __init__(self, step):
        self.step = step

    def on_step(self, step, row):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def mine():
    quick = {"train.epochs": 2, "train.monitor_every": 0, "data.limit": 256, "train.log_every": 1}
    return replace(recipe("digits.supsiam").with_set(quick), loss=Distant(alpha=0.5))


@pytest.mark.parametrize("named", [True, False])
def test_a_run_goes_on_with_its_own_loss(tmp_path, named):
    register(Distant)
    with pytest.raises(Interrupted):
        pretrain(mine(), out=tmp_path / "run", reporter=StopAt(2))
    run = pretrain(mine() if named else None, out=tmp_path / "run", resume=True)
    losses = [row["loss"] for row in run.metrics]
    assert len(losses) > 3
    assert min(losses) > 90
    assert all(row["ssl"] > 90 for row in run.metrics)  # a loss of one's own has its terms logged
    assert type(RunFolder(run.folder).read_recipe()[0].loss) is Distant


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda a, t: a, ("Returns", "Tensor", "Terms(total, ssl, sup)")),
        (lambda a, t: (a, a, a), ("Returns", "tuple", "Terms")),
        (
            lambda a, t: Terms(a[None], a.detach(), a.detach()),
            ("total", "Tensor", "(1,)"),
        ),
        (lambda a, t: Terms(a, a.detach(), 0.0), ("sup", "float", "tensor")),
        (lambda a, t: Terms(a.detach(), a.detach(), a.detach()), ("total", "gradient")),
    ],
)
def test_what_a_loss_must_not_give_is_told(given, told, tmp_path):
    @register
    @dataclass(frozen=True)
    class Returns:
        kind: str = "returns"
        supervised = False

        def sees_batch(self, pool):
            return False

        def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
            return given(-(anchors * targets.flip(0)).sum(-1).mean(), targets)

    with pytest.raises(BadInput, match=mentions(*told)):
        pretrain(replace(tiny_recipe("simsiam"), loss=Returns()), tiny_data(), out=tmp_path / "run")


def test_a_loss_that_gives_what_it_should_may_be_called_without_a_gradient():
    @register
    @dataclass(frozen=True)
    class Plain(Align):
        kind: str = "plain"

        def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
            """Kept."""
            return super().__call__(anchors, targets, labels, pool, global_batch=global_batch)

    views = torch.nn.functional.normalize(torch.randn(2, 4, 3), dim=-1)
    labels = torch.tensor([0, 1, 0, -1])
    assert Plain(alpha=0.5)(views, views, labels) == Align(alpha=0.5)(views, views, labels)
    assert Plain.__call__.__doc__ == "Kept."
    with torch.no_grad():
        assert torch.isfinite(Plain(alpha=1.0)(views.requires_grad_(), views, labels).total)


def test_a_loss_that_could_not_be_read_back_is_refused_before_training(tmp_path):
    with pytest.raises(BadInput, match=mentions("loss", "Distant", "@supancl.register")):
        pretrain(mine(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_section_that_cannot_be_registered_is_refused_too():
    @dataclass(frozen=True)
    class Views(type(recipe("digits.supsiam").views)):
        pass

    with pytest.raises(BadInput, match=mentions("Views", "losses", "pools")):
        replace(recipe("digits.supsiam"), views=Views(size=16)).with_set({"train.epochs": 1})


def test_a_run_whose_loss_nobody_made_known_names_it_and_the_way_out(tmp_path, monkeypatch, capsys):
    register(Distant)
    pretrain(mine(), out=tmp_path / "run")
    monkeypatch.setattr(own, "REGISTERED", {})
    for words in (("evaluate", "knn", tmp_path / "run"), ("pretrain", "--resume", "--out", tmp_path / "run")):
        said = supancl(capsys, *words)
        assert said.code == 2
        assert_mentions(said.err, "loss.kind", "'distant'", "align, contrast, crossentropy")
        assert_mentions(said.err.strip(), f"--plugin {__file__}")


def test_a_kind_that_is_taken_or_missing_is_refused():
    @dataclass(frozen=True)
    class Taken(Align):
        pass

    @dataclass(frozen=True)
    class TakenPool(PoolSpec):
        kind: str = "queue"

    class Kindless:
        def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
            return Terms(anchors.sum(), anchors.sum(), anchors.sum())

    with pytest.raises(BadInput, match=mentions("Taken", "loss.kind", "align")):
        register(Taken)
    with pytest.raises(BadInput, match=mentions("TakenPool", "pool.kind", "queue")):
        register(TakenPool)
    with pytest.raises(BadInput, match=mentions("Kindless", "frozen dataclass")):
        register(Kindless)
    assert not own.REGISTERED


def test_a_kind_of_another_class_is_refused_and_the_first_one_stays():
    @dataclass(frozen=True)
    class Nearer(Align):
        kind: str = "distant"

    @dataclass(frozen=True)
    class Pool(PoolSpec):
        kind: str = "distant"
        build = Halved.build

    register(Distant)
    with pytest.raises(BadInput) as told:
        register(Nearer)
    assert_refused(str(told.value), "Nearer", "loss.kind", "'distant'", f"{__name__}.Distant", "kind")
    assert own.REGISTERED["loss", "distant"] is Distant
    register(Distant)
    register(Pool)  # of a pool it is another name
    assert len(own.REGISTERED) == 2


def test_a_class_defined_anew_takes_its_own_place_and_recipes_of_the_one_before_say_so(tmp_path, monkeypatch, forks):
    """A notebook's cell run again, a module that is reloaded, and a script that another file imports."""

    def defined(by):
        @register
        @dataclass(frozen=True)
        class Shifted(Align):
            kind: str = "shifted"
            shift: float = by

        return Shifted

    first, second = defined(1.0), defined(2.0)
    assert first is not second
    assert own.REGISTERED["loss", "shifted"] is second
    plain = recipe("digits.supsiam")
    assert replace(plain, loss=second()).with_set({"train.epochs": 1}).loss.shift == 2.0
    with pytest.raises(BadInput, match=mentions("loss", "Shifted", "recipe")):
        replace(plain, loss=first()).with_set({"train.epochs": 1})

    started = 'if __name__ == "__main__":\n    import own_module\n\n    print(own_module.Spread is not Spread)\n'
    (tmp_path / "own_module.py").write_text(EXAMPLE.read_text().split("class HalvedQueue")[0] + started)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("own_module")
    before = own.REGISTERED["loss", "spread"]
    assert importlib.reload(module).Spread is own.REGISTERED["loss", "spread"]
    assert own.REGISTERED["loss", "spread"] is not before
    done = run_shell(f"python {tmp_path / 'own_module.py'}", tmp_path, forks)  # as Python itself names what it starts
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("file", [None, "own.py"])
def test_in_a_notebook_a_class_may_be_renamed_and_in_a_file_two_of_one_kind_are_refused(monkeypatch, file):
    place = ModuleType("__main__")
    place.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", place)

    def defined(name):
        made = make_dataclass(name, [("kind", str, "shifted")], bases=(Align,), frozen=True)
        made.__module__ = "__main__"
        return made

    first, second = register(defined("Shifted")), defined("Moved")
    if file:
        with pytest.raises(BadInput, match=mentions("Moved", "loss.kind", "'shifted'", "__main__.Shifted")):
            register(second)
        return
    assert register(second) is own.REGISTERED["loss", "shifted"]
    with pytest.raises(BadInput, match=mentions("loss", "Shifted", "recipe")):
        replace(recipe("digits.supsiam"), loss=first()).with_set({"train.epochs": 1})
    elsewhere = defined("Shifted")
    elsewhere.__module__ = "another"
    with pytest.raises(BadInput, match=mentions("Shifted", "loss.kind", "'shifted'", "__main__.Moved")):
        register(elsewhere)


@dataclass(frozen=True)
class Halved(PoolSpec):
    kind: str = "halved"

    def build(self, width, classes, unlabelled=False, ranks=None):
        return HalvedQueue(self.size, width, classes, unlabelled=unlabelled)


class HalvedQueue(Queue):
    def push(self, targets, labels):
        super().push(targets[::2], labels[::2])


def halved():
    return replace(recipe("digits.supsiam"), name="mine.halved", pool=Halved(size=512))


def test_a_run_goes_on_with_its_own_pool(tmp_path):
    register(Halved)
    quick = halved().with_set({"train.epochs": 2, "train.monitor_every": 0, "data.limit": 256, "train.log_every": 1})
    through = pretrain(quick, out=tmp_path / "through")
    with pytest.raises(Interrupted):
        pretrain(quick, out=tmp_path / "stopped", reporter=StopAt(3))
    again = pretrain(None, out=tmp_path / "stopped", resume=True)
    assert [row["sup"] for row in again.metrics] == [row["sup"] for row in through.metrics]
    assert again.metrics[-1]["sup"] != again.metrics[-1]["ssl"]  # the pool was looked into


@pytest.mark.parametrize("kind", ["queue", "none", "prototypes"])
def test_a_pool_of_ones_own_cannot_take_the_name_of_another(kind):
    """The class would go on to build what it builds: a study of pools would train the same one in every row."""
    register(Halved)
    assert halved().with_set({"pool.size": 64}).pool == Halved(size=64)
    with pytest.raises(BadInput, match=mentions("pool.kind", f"'{kind}'", "'halved'")):
        halved().with_set({"pool.kind": kind})


def test_a_loss_of_ones_own_cannot_take_the_name_of_another(tmp_path):
    register(Distant)
    with pytest.raises(BadInput, match=mentions("loss.kind", "align", "'distant'")):
        pretrain(replace(mine(), loss=Distant(kind="align", alpha=0.5)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_run_would_miss_later_is_refused_at_once():
    @dataclass(frozen=True)
    class Bare:
        kind: str = "bare"

    class Labels(Bare):
        supervised = True

    class Batch(Labels):
        def sees_batch(self, pool):
            return False

    class Alone(Batch):
        def __call__(self, anchors, targets, labels, pool=None):
            raise AssertionError("never called")

    class Enough(Batch):
        def __call__(self, anchors, targets, labels, pool=None, **more):
            raise AssertionError("never called")

    @dataclass(frozen=True)
    class Buildless(PoolSpec):
        kind: str = "buildless"

    class Short(Buildless):
        def build(self, width, classes):
            raise AssertionError("never called")

    for section, needs in (
        (Bare, "supervised = True or False"),
        (Labels, "def sees_batch(self, pool)"),
        (Batch, "def __call__(self, anchors, targets, labels, pool=None, global_batch=None)"),
        (Alone, "def __call__(self, anchors, targets, labels, pool=None, global_batch=None)"),
        (Buildless, "its own build method"),
        (Short, "def build(self, width, classes, unlabelled=False, ranks=None)"),
    ):
        with pytest.raises(BadInput, match=re.escape(f"{section.__name__}: needs {needs}")):
            register(section)
    assert not own.REGISTERED
    assert register(Enough) is own.REGISTERED["loss", "bare"]


def test_a_field_that_recipe_json_cannot_hold_is_refused_at_once():
    @dataclass(frozen=True)
    class Listed(Align):
        kind: str = "listed"
        widths: list[int] = field(default_factory=list)

    @dataclass(frozen=True)
    class Wrong(Align):
        kind: str = "wrong"
        count: int = 0.5

    @dataclass(frozen=True)
    class Kept(Align):
        kind: str = "kept"
        widths: tuple[int, ...] = (1, 2)
        word: str | None = None

    with pytest.raises(BadInput, match=mentions("Listed", "type", "widths")):
        register(Listed)
    with pytest.raises(BadInput, match=mentions("Wrong.count", "0.5", "whole number")):
        register(Wrong)
    assert register(Kept) is Kept


@dataclass(frozen=True)
class Sharper(Contrast):
    kind: str = "sharper"


@dataclass(frozen=True)
class Softer(CrossEntropy):
    kind: str = "softer"


def test_a_class_made_from_a_loss_is_held_to_what_that_loss_needs(tmp_path):
    register(Sharper)
    register(Softer)
    base = recipe("digits.supsiam")
    with pytest.raises(BadInput, match=mentions("loss.against", "pool")):
        replace(base, loss=Sharper(against="pool"), pool=PoolSpec())
    with pytest.raises(BadInput, match=mentions("pool.sharded", "every rank")):
        replace(base, loss=Sharper(against="other-view+pool"), pool=PoolSpec("prototypes", sharded=True))
    narrow = replace(base, loss=Softer(), heads=replace(base.heads, projector=replace(base.heads.projector, out=4)))
    with pytest.raises(BadInput, match=mentions("heads.projector.out", "4", "10 classes")):
        pretrain(narrow, out=tmp_path / "run")


def test_alpha_is_handed_to_the_packages_own_loss_alone():
    """A captured step gives it as the fifth argument, which to a class of one's own may be another."""
    assert Align(alpha=0.3).takes_alpha
    assert not Distant(alpha=0.3).takes_alpha
    assert not Contrast().takes_alpha
    seen = []

    @register
    @dataclass(frozen=True)
    class Fifth(Align):
        kind: str = "fifth"

        def __call__(self, anchors, targets, labels, pool=None, global_batch=None):
            seen.append(global_batch)
            return super().__call__(anchors, targets, labels, pool)

    trainer = Trainer(replace(tiny_recipe("supsiam"), loss=Fifth(alpha=0.5)), tiny_data(), torch.device("cpu"))
    trainer.inputs.alpha = torch.tensor(0.9)  # as on a GPU
    trainer.advance()
    assert seen == [None]


def test_a_pool_with_what_the_page_asks_for_and_no_more_is_trained_with(tmp_path):
    class Latest(Pool):
        def __init__(self, width, classes):
            super().__init__()
            self.register_buffer("latest", torch.zeros(classes, width))
            self.register_buffer("known", torch.zeros(classes, dtype=torch.long))

        @property
        def counts(self):
            return self.known

        def push(self, targets, labels):
            self.latest[labels], self.known[labels] = targets, 1

        def class_mean(self, labels, fallback, samples=None, part=None):
            return torch.where((self.known[labels] > 0)[:, None], self.latest[labels], fallback)

        def stored(self):
            return Stored(self.latest, torch.arange(len(self.known)), self.known > 0)

    @register
    @dataclass(frozen=True)
    class LatestSpec(PoolSpec):
        kind: str = "latest"

        def build(self, width, classes, unlabelled=False, ranks=None):
            return Latest(width, classes)

    quick = {"train.epochs": 1, "data.limit": 256}
    run = pretrain(replace(recipe("digits.supsiam"), pool=LatestSpec()).with_set(quick), out=tmp_path / "run")
    last = run.metrics[-1]
    assert (last["kind"], last["pool_coverage"], last["pool_staleness"]) == ("monitor", 1.0, None)


@pytest.mark.parametrize("name", ["7", "8", "F.1", "F.2", "F.3", "5"])
def test_no_run_of_ones_own_stands_in_a_row_of_the_papers(name):
    register(Distant)
    register(Halved)
    layout, ours = LAYOUTS[name], recipe("cifar100.supsiam")
    printed = layout.paper.rows[next(iter(layout.paper.rows))]
    assert layout.row_of(ours) in printed
    for chosen in (
        replace(ours, loss=Distant(alpha=0.5)),
        replace(ours, pool=Halved(size=4096)),
        replace(ours, name="mine.foo", method="foo", loss=Distant(alpha=0.5)),
    ):
        assert layout.row_of(chosen) not in printed
        assert len(layout.head_of(chosen)) == len(layout.heads)
    assert LAYOUTS["8"].row_of(replace(ours, loss=Distant(alpha=0.5))) == NO_PAPER_ROW
    assert LAYOUTS["8"].head_of(replace(ours, pool=Halved())) == LAYOUTS["8"].head_of(ours)


WORDS = "batch mine.spread --jobs 2 --epochs 1 --seeds 1 --set data.limit=256 --rows batch-128,batch-256 --out study"


def study(way, text, folder, forks):
    (folder / "own_method.py").write_text(text)
    """What the command said; its two workers are forked too, from a process that knows nothing of ours."""
    return run_shell(f"python '{ROOT / 'tests' / 'forked_workers.py'}' {way} {WORDS}", folder, forks)


@pytest.mark.parametrize(
    "way", ["python own_method.py paper study", "supancl paper study --plugin own_method.py"], ids=["file", "plugin"]
)
def test_a_study_side_by_side_knows_the_loss_in_every_process(way, tmp_path, forks):
    done = study(way, EXAMPLE.read_text(), tmp_path, forks)
    assert done.returncode == 0, done.stderr[-2000:]
    for row in ("batch-128", "batch-256"):
        assert '"kind": "spread"' in (tmp_path / "study" / f"{row}-seed-0" / "recipe.json").read_text()


def test_a_file_that_begins_the_study_anew_in_every_process_is_told_so(tmp_path, forks):
    """It was said that a process was killed for lack of memory."""
    text = EXAMPLE.read_text().replace('if __name__ == "__main__":', "if True:")
    assert text != EXAMPLE.read_text()
    done = study("python own_method.py paper study", text, tmp_path, forks)
    assert done.returncode == 2
    assert "bootstrapping phase" in done.stderr  # by Python, in the process
    last = done.stderr.strip().splitlines()[-1]
    assert_mentions(last, "2 processes", "study")
    assert 'if __name__ == "__main__":' in last
    assert "memory" not in last


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([1, None], True),
        ([1, -15], True),
        ([-9, None], False),
        ([-9, 1], False),
        ([-15, 0], False),
        ([], False),
    ],
)
def test_a_process_that_was_killed_is_not_one_that_could_not_begin(ends, told):
    assert _failed_to_start(ends) is told
