"""Small things on disk: images, class folders, archives, tables; and the command line, run in this process."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from supancl.cli import main

TINY = ["--epochs", "1", "--batch-size", "4", "--device", "cpu", "--set", "encoder.width=8", "--set", "pool.size=16"]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (8, 8), mode: str = "L") -> Path:
    """An image of noise in a file whose suffix says the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(*size, 3, seed=seed)).convert(mode).save(path)
    return path


def png(seed: int, size: tuple[int, int] = (8, 6)) -> bytes:
    """A picture of noise, encoded."""
    content = io.BytesIO()
    Image.fromarray(noise(*size, 3, seed=seed)).save(content, "png")
    return content.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


def class_folders(root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 6, seed: int = 0) -> Path:
    """Images of noise in a folder per class; the same ones for the same seed."""
    for c, name in enumerate(classes):
        for i in range(each):
            picture(root / name / f"{i}.png", seed=seed + 100 * c + i)
    return root


def archive(path: Path, **arrays: object) -> Path:
    """A .npz of 20 grey images in two classes; what is named replaces or adds to it, None takes away."""
    content = {"train_images": noise(20, 8, 8), "train_labels": np.arange(20) % 2, **arrays}
    np.savez(path, **{name: np.asarray(value) for name, value in content.items() if value is not None})
    return path


def table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Said(NamedTuple):
    code: int
    out: str
    err: str


def supancl(capsys, *arguments: object) -> Said:
    """The command's exit code and what it printed."""
    capsys.readouterr()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as leaving:  # argparse ends the process itself
        code = leaving.code
    return Said(code, *capsys.readouterr())


def pattern_of(noun: object) -> str:
    """The literal, not within a longer word or number."""
    text = str(noun)
    before = r"(?<!\w)(?<!\d[.,])" if re.match(r"\d", text) else r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)(?![.,]\d)" if re.search(r"\d$", text) else r"(?!\w)" if re.search(r"\w$", text) else ""
    return before + re.escape(text) + after


def mentions(*nouns: object) -> str:
    """A pattern for `pytest.raises(match=...)`: a message that names all of these, in any order and case."""
    return "(?is)" + "".join(f"(?=.*{pattern_of(noun)})" for noun in nouns)


def assert_mentions(text: str, *nouns: object) -> None:
    """The text names all of these, in any order and case."""
    missing = [str(noun) for noun in nouns if not re.search(pattern_of(noun), text, re.IGNORECASE)]
    assert not missing, f"not mentioned: {missing} in: {text}"


def assert_one_line(text: str, *nouns: object) -> None:
    """The text is a single line that names all of these."""
    assert len(text.splitlines()) == 1, text
    assert_mentions(text, *nouns)


def assert_refused(said: Said | str, *nouns: object, code: int = 2) -> None:
    """One line without a traceback that names the thing, the place and the way out; of a command its exit code too."""
    if not isinstance(said, str):
        assert said.code == code, said.err
        assert "Traceback" not in said.out
        assert said.err.startswith("supancl: "), said.err
        said = said.err
    assert_one_line(said, *nouns)


def saved_result(path: Path) -> dict[str, object]:
    """The result in a file that was written with a digest, without that."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name != "digest"}


def contents(root: Path) -> dict[str, bytes | None]:
    """Every file below the root with its bytes, every folder with None; who holds a lock is no content."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if path.name != ".lock"
    }
