"""Try an installed supancl from an empty folder: `.ci/dist` runs this next to the wheel it has built."""

import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import supancl
from supancl import load_encoder

DIST = Path(sys.argv[1])


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


package = Path(supancl.__file__).parent
assert package.is_relative_to(sys.prefix), f"{package} is not the wheel that was installed in {sys.prefix}"
assert version("supancl") == supancl.__version__
assert f"supancl {supancl.__version__} " in run("supancl", "--version")
assert "usage: supancl" in run("supancl", "--help")
assert "usage: python -m supancl" in run(sys.executable, "-m", "supancl", "--help")
assert files("supancl").joinpath("py.typed").is_file()
assert list(files("supancl.data.sources").joinpath("imagenet100.txt").open()), "package data are missing"

run(
    "supancl",
    "pretrain",
    "digits.supsiam",
    "--epochs",
    "1",
    "--set",
    "data.limit=256",
    "--out",
    "run",
    "--device",
    "cpu",
)
assert "k-NN (k = 20)" in run("supancl", "evaluate", "knn", "run", "--k", "20", "--device", "cpu")
assert load_encoder("run").width == 64

with zipfile.ZipFile(next(DIST.glob("*.whl"))) as wheel, tarfile.open(next(DIST.glob("*.tar.gz"))) as source:
    names = [name.replace("supancl/runs", "") for name in (*wheel.namelist(), *source.getnames())]
strays = [name for name in names if {"tests", "runs", "experiments", ".venv"} & set(Path(name).parts)]
assert not strays, strays
sizes = ", ".join(f"{path.name} {path.stat().st_size // 1000} KB" for path in sorted(DIST.iterdir()))
print(f"supancl {supancl.__version__} works as a wheel: {sizes}")
