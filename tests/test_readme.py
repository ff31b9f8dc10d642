"""Every command and every Python block of the README is run, and what it shows of the repository is so."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files import class_folders

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", README, re.DOTALL)
SHELL = [block for kind, block in BLOCKS if kind == "bash"]
# this very run; the demo, which is run below; the environment that it runs in
SKIPPED = {"make test", "make demo", ". .venv/bin/activate"}


def run(command: str, folder: Path, more: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    """As a user starts it, with more in the environment; with `forks` from a process that has the libraries."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **(more or {})}
    return subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("block", SHELL[1:], ids=[block.split()[-1] for block in SHELL[1:]])
def test_every_command_of_the_readme_runs(block: str, tmp_path: Path, forks: dict[str, str]) -> None:
    class_folders(tmp_path / "photos", each=20)
    commands = [line for line in block.splitlines() if line not in SKIPPED]
    assert commands
    for command in commands:
        # the first block of commands is started as a user starts it, all the way from the installed script
        done = run(command, tmp_path, None if block is SHELL[1] else forks)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    for name in re.findall(r"--out (\S+)", block):
        assert (tmp_path / name).exists(), name


@pytest.mark.parametrize("epochs", ["EPOCHS=2", pytest.param("", marks=pytest.mark.slow)])
def test_the_demo_of_the_readme_runs(epochs: str) -> None:
    """Two epochs of its eighty run every line of it; its table has the README's rows and columns."""
    assert SHELL[0].splitlines() == ["make demo", "make test"]
    done = run(f"make demo {epochs}", ROOT, {"OMP_WAIT_POLICY": "passive"})  # its two threads are not alone here
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    shown = README.split("and prints\n\n```\n")[1].split("```")[0]
    (out,) = re.findall(r"runs and pictures in (runs/demo-\d+);", done.stdout)
    try:
        for line in (line for line in shown.splitlines() if "┃" in line or "(one seed)" in line):
            assert line.strip() in done.stdout
        for name in ("simsiam", "supsiam"):
            assert re.search(rf"│ {name} (│ +[\d.]+ ){{5}}│", done.stdout)
            assert re.search(rf"│ {name} (│ +[\d.]+ ){{5}}│", shown)
        for name in ("losses.png", "tsne.png", "simsiam/encoder.safetensors", "supsiam/encoder.safetensors"):
            assert (ROOT / out / name).stat().st_size
    finally:
        shutil.rmtree(ROOT / out)


@pytest.mark.parametrize("block", [block for kind, block in BLOCKS if kind == "python"])
def test_every_python_block_of_the_readme_runs(block: str, tmp_path: Path, forks: dict[str, str]) -> None:
    (tmp_path / "block.py").write_text(block)
    done = run("python block.py", tmp_path, forks)
    assert done.returncode == 0, done.stderr


def test_the_loop_of_the_readme_is_the_example_and_fits_in_25_lines() -> None:
    example = (ROOT / "examples" / "own_loop.py").read_text()
    assert example in README
    assert len(example.splitlines()) <= 25


@pytest.mark.parametrize("page", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    for link in links:
        assert link.startswith("http") or (page.parent / link).exists(), link


def test_the_encoder_of_a_run_loads_elsewhere_as_the_page_says(tmp_path: Path, forks: dict[str, str]) -> None:
    page = (ROOT / "docs" / "own-data.md").read_text().split("## The encoder elsewhere")[1]
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    class_folders(tmp_path / "photos", each=4)
    begin = (
        "import supancl, torch\nfrom supancl.weights.encoder_file import save_encoder\nfrom pathlib import Path\n"
        "encoder = supancl.EncoderSpec('resnet18', size=32).build().eval()\n"
        "Path('runs/photos').mkdir(parents=True)\n"
        "save_encoder(Path('runs/photos/encoder.safetensors'), encoder, (), 'x')\n"
    )
    images = "images = torch.randn(2, 3, 32, 32)\n"
    same = "assert torch.equal(model.eval()(images), encoder(images))\n"
    load = blocks[0].replace("model.load_state_dict(weights)\n", "model.load_state_dict(weights)\n" + same)
    exported = "torch.export.export(encoder, (torch.zeros(1, 3, encoder.size, encoder.size),))"
    assert exported in page
    assert load.count(same) == 2
    (tmp_path / "block.py").write_text(begin + images + load + exported + "\n")
    (tmp_path / "search.py").write_text(blocks[1])
    embed = "supancl embed runs/photos --data photos --out features.npz"
    for command in ("python block.py", embed, "python search.py"):
        done = run(command, tmp_path, forks)
        assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(".png") == 6
