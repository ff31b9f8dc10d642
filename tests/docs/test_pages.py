"""Every bash and python block of README.md and docs/*.md runs or says that it does not; `pip install` lines do not."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import NOT_RUN, PAGES, ROOT, RUN, SHOWN, Block, Runner, blocks_of
from tests.helpers import class_folders, picture
from tests.recipes.test_plugins import draw_shapes

README = ROOT / "README.md"
CODE = {page: [block for block in blocks_of(page) if block.kind in RUN] for page in PAGES}
COMMAND = re.compile(r"(supancl|python3?|make|pip|git|torchrun) ")
SLOW = {"make test", "make ci"}  # these run this very test, or the suite
TRAINED = """
import supancl
from pathlib import Path
from supancl.runs.encoder_file import save_encoder
Path("runs/photos").mkdir(parents=True)
encoder = supancl.EncoderSpec("resnet18", size=32).build().eval()
save_encoder(Path("runs/photos/encoder.safetensors"), encoder, (), "x")
"""


def prepare(page: Path, runner: Runner) -> None:
    """What the page's reader has by then: a folder of photos; a run of them; the example's file and its data."""
    class_folders(runner.folder / "photos", each=20)
    for number in range(3):
        picture(runner.folder / "photos" / "unlabelled" / f"{number}.png", seed=number)
    if page.name == "export.md":
        picture(runner.folder / "photos" / "cat" / "7.png", size=(48, 48), mode="RGB")
        runner.run(Block(page, 0, "python", TRAINED))
    if page.name == "extending.md":
        parts = [block.text for block in CODE[page] if block.kind == "python"]
        (runner.folder / "own_method.py").write_text("\n\n".join(parts))
        draw_shapes(runner.folder / "DATA" / "shapes")


@pytest.fixture
def runner(tmp_path: Path, forks: dict[str, str]) -> Iterator[Runner]:
    environment = blocks.environment_of(ROOT, EPOCHS="2", OMP_WAIT_POLICY="passive")
    made = Runner(tmp_path, {**environment, **forks}, SLOW)
    made.program = sys.executable  # not forked: the process that forks waits for each child
    yield made
    made.close()


EXPORT = ROOT / "docs" / "export.md"  # it has a test of its own, as its blocks take long


@pytest.mark.parametrize(
    "page", [page for page in PAGES[1:] if CODE[page] and page != EXPORT], ids=lambda page: page.name
)
def test_the_code_of_a_page_runs_in_order(page: Path, runner: Runner) -> None:
    prepare(page, runner)
    for block in CODE[page]:
        runner.run(block)


def test_the_readme_runs_in_a_copy_of_the_repository(tmp_path: Path) -> None:
    """As a user starts it, all the way from the installed script; the demo with two of its eighty epochs."""
    blocks.copy_tree(tmp_path)
    environment = blocks.environment_of(tmp_path, EPOCHS="2", OMP_WAIT_POLICY="passive")
    runner = Runner(tmp_path, environment, SLOW)
    prepare(README, runner)
    for block in CODE[README]:
        runner.run(block)
    printed = runner.run(Block(README, 0, "bash", "make demo"))
    runner.close()
    (out,) = re.findall(r"runs and pictures in (runs/demo-\d+);", printed)
    for name in ("simsiam", "supsiam"):
        assert re.search(rf"^ *{name}( +[\d.]+){{5}}$", printed, re.MULTILINE)
    for name in ("losses.png", "tsne.png", "simsiam/encoder.safetensors", "supsiam/encoder.safetensors"):
        assert (tmp_path / out / name).stat().st_size
    for name in re.findall(r"--out (\S+)", "".join(block.text for block in CODE[README])):
        assert (tmp_path / name).exists(), name


@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks_of(page)], ids=str)
def test_every_block_is_run_or_marked(block: Block) -> None:
    assert block.kind.partition(" .")[0] in (*RUN, *NOT_RUN, *SHOWN)
    if block.kind == "":
        assert not COMMAND.match(block.text), "open it with ```bash, ```bash no-run or, for usage, ```text"
    if block.kind == "python no-run":
        compile(block.text, str(block), "exec")


def test_the_example_of_a_loop_runs_and_fits_in_25_lines(runner: Runner) -> None:
    example = (ROOT / "examples" / "own_loop.py").read_text()
    assert "examples/own_loop.py" in README.read_text()
    assert len(example.splitlines()) <= 25
    assert "coverage" in runner.run(Block(README, 0, "python", example))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_files_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    there = [f"/{path.relative_to(ROOT).as_posix()}" for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/*.py"))]
    assert [file for file in named if not any(path.endswith(f"/{file}") for path in there)] == []


def test_the_code_of_the_page_on_export_runs_and_every_way_of_loading_gives_the_same(runner: Runner) -> None:
    """transformers and ONNX Runtime: tests/extras."""
    prepare(EXPORT, runner)
    same = "\nfrom supancl import load_encoder\nassert torch.equal(features, load_encoder('runs/photos')(images))"
    for block in CODE[EXPORT]:
        runner.run(block._replace(text=block.text + same) if "features = " in block.text else block)
    assert sum("features = " in block.text for block in CODE[EXPORT]) == 4
