"""How far is it from a command to what it computes? Counted by running two trees, after `ruff format` of both.

    make walks                  or: python tests/walks.py [COMMIT ...] [--json] [--update docs/architecture.md]

Without a commit it counts the commit before the rooms and this tree. Each tree runs in processes of its own, with one
thread; only the command line is used, so that the same file serves trees whose modules have other names.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEFORE, NOW = "e7cac89", "now"
MARKERS = "<!-- walks: python tests/walks.py --update docs/architecture.md -->", "<!-- end of walks -->"
PRETRAIN = ["pretrain", "digits.supsiam", "--epochs", "1", "--device", "cpu", "--out", "run", "--quiet"]
LINEAR = ["evaluate", "linear", "run", "--quiet"]
IMAGES = [
    "pretrain", "cifar10.supsiam", "--data", "images", "--epochs", "1", "--device", "cpu", "--out", "run-of-images",
    "--set", "train.batch_size=8", "--set", "views.size=8", "--quiet",
]  # fmt: skip
CORE = ("heads", "branches", "pools", "losses", "schedules", "methods")
PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "einsum", "linear", "conv2d"}
COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
Count = dict[str, Any]


# --- in a process of one tree -----------------------------------------------------------------------------------------


class Reached(BaseException):
    """The walk is at its end; nothing in the package catches this, and what cleans up is not noted."""

    def __init__(self) -> None:
        sys.setprofile(None)


class Walk:
    """The functions of the package that a command enters once its arguments are parsed; imports do not count."""

    def __init__(self) -> None:
        import supancl

        self.root = Path(supancl.__file__).parent
        self.entered: set[CodeType] = set()
        self.entered_by_data: set[CodeType] = set()  # functions of data/, and what they call
        self.imports = threading.local()

    def stack(self, frame: FrameType | None) -> Iterator[CodeType]:
        """The package's functions from this frame outwards; a comprehension is a part of its function."""
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(f"{self.root}{os.sep}") and code.co_name not in COMPREHENSIONS:
                yield code
            frame = frame.f_back

    def note(self, frame: FrameType, event: str, result: object) -> None:
        """A profile function."""
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code.co_name == "<module>" or code.co_filename.startswith("<frozen importlib"):
            self.imports.depth = getattr(self.imports, "depth", 0) + (1 if event == "call" else -1)
        elif event == "call" and not getattr(self.imports, "depth", 0):
            stack = list(self.stack(frame))
            if code in stack[:1]:
                self.entered.add(code)
                if any(self.file(each).startswith("data/") for each in stack):
                    self.entered_by_data.add(code)

    def run(self, words: list[str]) -> None:
        import torch
        import torch._dynamo  # torch's optimizers import it late, which takes long where calls are noted

        from supancl.cli import main

        parse = argparse.ArgumentParser.parse_args

        def parsed(*args: Any, **kwargs: Any) -> Any:
            result = parse(*args, **kwargs)
            threading.setprofile(self.note)
            sys.setprofile(self.note)
            return result

        torch.set_num_threads(1)
        argparse.ArgumentParser.parse_args = parsed  # type: ignore[method-assign]
        try:
            status = main(words)
        except Reached:
            return
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if status:
            raise SystemExit(f"supancl {' '.join(words)} ended with {status}")

    def name(self, code: CodeType) -> str:
        return f"{self.file(code)}:{code.co_qualname}"

    def file(self, code: CodeType) -> str:
        return Path(code.co_filename).relative_to(self.root).as_posix()

    def lines_of(self, files: Iterable[str]) -> int:
        return sum(len((self.root / file).read_text().splitlines()) for file in files)

    def count(self, functions: Iterable[CodeType]) -> Count:
        """The files in which these functions lie and the functions' lines, each counted once."""
        chosen = set(functions)
        files = sorted({self.file(code) for code in chosen})
        lines = 0
        for file in files:
            starts = {code.co_firstlineno for code in chosen if self.file(code) == file}
            lines += len({line for node in functions_of(self.root / file) if first_line(node) in starts
                          for line in range(node.lineno, end_line(node) + 1)})  # fmt: skip
        return {"files": files, "lines": lines, "functions": sorted(map(self.name, chosen))}


def when_views_reach_a_network(act: Callable[[Any], None]) -> None:
    """Call this with the views of the first batch."""
    import torch

    call = torch.nn.Module.__call__

    def called(*args: Any, **kwargs: Any) -> Any:
        views = [each for each in args if isinstance(each, torch.Tensor) and each.ndim == 5]  # views, images, C, H, W
        views = [each for each in views if each.device.type != "meta"]  # shapes alone, to estimate memory
        if views:
            torch.nn.Module.__call__ = call  # type: ignore[method-assign]
            act(views[0])
        return call(*args, **kwargs)

    torch.nn.Module.__call__ = called  # type: ignore[method-assign]


def walk_to_backward() -> Count:
    """The stack at the first `backward()`; and with it all that is entered since the views reached the branches."""
    import torch

    walk = Walk()
    hops: list[CodeType] = []

    def reached(*_: object, **__: object) -> None:
        hops.extend(walk.stack(sys._getframe()))
        raise Reached

    torch.Tensor.backward = reached  # type: ignore[method-assign]
    when_views_reach_a_network(lambda views: walk.entered.intersection_update(walk.stack(sys._getframe())))
    walk.run(PRETRAIN)
    with_forward = walk.count({*hops, *walk.entered})
    return {
        "hops": [walk.name(code) for code in reversed(hops)],
        "files": (files := walk.count(hops)["files"]),
        "lines": walk.lines_of(files),
        "step": walk.name(hops[0]),
        "step_lines": walk.count(hops[:1])["lines"],
        "with_forward": with_forward | {"lines": walk.lines_of(with_forward["files"])},
    }


def walk_to_accuracy() -> Count:
    """Functions on the stack where the encoder gets its weights or tensors are multiplied; and all that are entered."""
    import torch
    from torch.overrides import TorchFunctionMode

    walk = Walk()
    passed: set[CodeType] = set()

    class Products(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "") in PRODUCTS:
                passed.update(walk.stack(sys._getframe()))
            return function(*args, **(kwargs or {}))

    load = torch.nn.Module.load_state_dict

    def loaded(*args: Any, **kwargs: Any) -> Any:
        passed.update(walk.stack(sys._getframe()))
        return load(*args, **kwargs)

    torch.nn.Module.load_state_dict = loaded  # type: ignore[method-assign]
    with Products():
        walk.run(LINEAR)
    return walk.count(passed & walk.entered) | {"entered": walk.count(walk.entered)}


def walk_to_views() -> Count:
    """Functions of data/ and what they call, from a folder of files until views reach a network."""
    walk = Walk()
    shape: list[int] = []

    def reached(views: Any) -> None:
        shape.extend(views.shape)
        raise Reached

    draw_images(Path("images"))
    when_views_reach_a_network(reached)
    walk.run(IMAGES)
    return walk.count(walk.entered_by_data) | {"shape": shape}


def draw_images(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for split, images in (("train", 16), ("val", 4)):
        for label in ("cats", "dogs"):
            (folder / split / label).mkdir(parents=True)
            for number in range(images):
                pixels = random.integers(0, 256, (12, 10, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{number}.png")


WALKS: dict[str, Callable[[], Count]] = {
    "backward": walk_to_backward,
    "accuracy": walk_to_accuracy,
    "views": walk_to_views,
}


# --- a tree's text ----------------------------------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(file: Path) -> list[Function]:
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, Function)]


def first_line(node: Function) -> int:
    """As a code object says it: a decorator's, where there is one."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def end_line(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def parameters(node: Function) -> int:
    named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([each for each in named if each.arg not in ("self", "cls")])


def count_text(package: Path) -> Count:
    """Lines, modules, rooms, and what is longest."""
    files = {path.relative_to(package).as_posix(): path for path in sorted(package.rglob("*.py"))}
    lines = {name: len(path.read_text().splitlines()) for name, path in files.items()}
    functions = [(name, node) for name, path in files.items() for node in functions_of(path)]
    lengths = {f"{name}:{node.name}": end_line(node) - node.lineno + 1 for name, node in functions}
    wide = [f"{name}:{node.name}" for name, node in functions if parameters(node) > 7]
    room = package / "core"
    if room.is_dir():  # all that lies in it, so that a seventh file counts
        core = [f"core/{path.name}" for path in sorted(room.glob("*.py")) if path.stem not in ("encoders", "layers")]
    else:
        core = [f"{name}.py" for name in CORE]
    longest, largest = max(lengths, key=lambda name: lengths[name]), max(lines, key=lambda name: lines[name])
    return {
        "core": {"files": core, "lines": sum(lines[name] for name in core)},
        "loose": sorted(name for name in lines if "/" not in name and not name.startswith("__")),
        "rooms": sorted({name.split("/")[0] for name in lines if "/" in name}),
        "lines": sum(lines.values()),
        "modules": len(lines),
        "longest_file": [largest, lines[largest]],
        "longest_function": [longest, lengths[longest]],
        "many_parameters": wide,
    }


# --- trees ------------------------------------------------------------------------------------------------------------


def copy_tree(commit: str, folder: Path) -> None:
    """The package and the README as they were, or as they are now; formatted by this tree's settings."""
    folder.mkdir(parents=True)
    if commit == NOW:
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "README.md", folder)
    else:
        words = ["git", "-C", str(ROOT), "archive", commit, "src", "README.md"]
        archive = subprocess.run(words, check=True, capture_output=True)
        subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.exists() else "ruff"
    words = [ruff, "format", "--quiet", "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(folder / "src")]
    subprocess.run(words, check=True)


def walk_in(tree: Path, scratch: Path, name: str) -> Count:
    """One walk in a process whose package is the tree's."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
        "SUPANCL_CACHE": str(scratch / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    here = scratch / name
    here.mkdir(parents=True)

    def python(*words: str) -> None:
        done = subprocess.run([sys.executable, "-P", *words], cwd=here, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name} cannot be walked in {tree}: {(done.stdout + done.stderr)[-2000:]}")

    if name == "accuracy":
        python("-c", "import sys; from supancl.cli import main; sys.exit(main())", *PRETRAIN)
    python(str(Path(__file__).resolve()), "--here", name)
    return dict(json.loads((here / "count.json").read_text()))


def measure(commit: str) -> Count:
    with TemporaryDirectory(prefix="walks-") as scratch:
        tree = Path(scratch) / "tree"
        copy_tree(commit, tree)
        walks = {name: walk_in(tree, Path(scratch), name) for name in WALKS}
        readme = len((tree / "README.md").read_text().splitlines())
        return walks | count_text(tree / "src" / "supancl") | {"readme": readme}


def rows(count: Count) -> dict[str, str]:
    """The table's cells of one tree."""
    backward, accuracy, views = (count[name] for name in WALKS)
    forward = backward["with_forward"]
    return {
        "`supancl pretrain` -> `backward()`": f"{len(backward['files'])} files, {len(backward['hops'])} hops, "
        f"{backward['lines']:,} lines of files",
        "the same, with branches and loss": f"{len(forward['files'])} files, {len(forward['functions'])} functions, "
        f"{forward['lines']:,} lines of files",
        "the function that calls `backward()`": f"{backward['step_lines']} lines",
        "`supancl evaluate linear` -> accuracy": f"{len(accuracy['files'])} files, {accuracy['lines']:,} lines of "
        "functions",
        "the same, all that is entered": f"{len(accuracy['entered']['files'])} files, "
        f"{accuracy['entered']['lines']:,} lines of functions",
        "image on disk -> view tensor": f"{len(views['files'])} files, {views['lines']:,} lines of functions",
        "core: heads, branches, pools, losses, schedules, methods": f"{count['core']['lines']:,} lines",
        "loose modules beside rooms": f"{len(count['loose'])} beside {len(count['rooms'])}",
        "the package": f"{count['lines']:,} lines in {count['modules']} modules",
        "longest file": f"{count['longest_file'][1]} lines",
        "longest function": f"{count['longest_function'][1]} lines",
        "functions with more than seven parameters": str(len(count["many_parameters"])),
        "README": f"{count['readme']} lines",
    }


def table(counts: dict[str, Count]) -> str:
    cells = {name: rows(count) for name, count in counts.items()}
    lines = [["walk", *cells], ["---"] * (len(cells) + 1)]
    lines += [[walk, *(column[walk] for column in cells.values())] for walk in next(iter(cells.values()))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def update(page: Path, text: str) -> None:
    """Put the table between the page's two markers."""
    before, found, rest = page.read_text().partition(MARKERS[0])
    _, closed, after = rest.partition(MARKERS[1])
    if not (found and closed):
        raise SystemExit(f"{page} has no lines {MARKERS[0]} and {MARKERS[1]}; the table goes between them")
    page.write_text(f"{before}{MARKERS[0]}\n{text}\n{MARKERS[1]}{after}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="*", default=[BEFORE, NOW], metavar="COMMIT", help=f"or {NOW}: this tree")
    parser.add_argument("--json", action="store_true", help="every count with its files and functions, not the table")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="write the table into this page")
    parser.add_argument("--here", choices=WALKS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        Path("count.json").write_text(json.dumps(WALKS[args.here]()))
        sys.exit(0)
    counts = {commit: measure(commit) for commit in args.commits}
    print(json.dumps(counts, indent=2) if args.json else table(counts))
    if args.update:
        update(args.update, table(counts))
