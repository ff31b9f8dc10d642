"""Tables 1, 2, 4, 8 and H.1: the documented commands in their smallest form, then the cell and its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from supancl.data.sources.benchmarks import BENCHMARKS
from supancl.paper.toy_study import Size
from supancl.runs.folder import RunFolder
from tests.detection.drawn import TINY, narrow_resnet18, write_voc
from tests.paper.made import DIGITS, SMALL, colours, edit, ours, run, table

TOY = Size(dimensions=40, train=40, test=10, width=6, epochs=1, batch=16)
CNN = ["--set", "encoder.name=cnn", "--set", "views.size=16", "--set", "heads.projector.hidden=[16]"]
CNN += ["--batch-size", "32"]


def result(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "evaluate" / f"{name}.json").read_text())
    return content


def of_protocol(folder: Path, protocol: str, **settings: Any) -> Path:
    """The one file of a run's evaluations with these settings."""
    (found,) = (
        file
        for file in (folder / "evaluate").glob("*.json")
        if (kept := json.loads(file.read_text())).get("protocol") == protocol
        and all(kept.get(key) == value for key, value in settings.items())
    )
    return found


# --- Table 1 ----------------------------------------------------------------------------------------------------------


def test_table_1_from_a_study_of_alpha(tmp_path: Path) -> None:
    out = tmp_path / "alpha"
    study = ["paper", "study", "alpha", "digits.supsiam", "--rows", "alpha-0,alpha-1", "--set", "data.limit=128"]
    study += ["--jobs", "1"]
    run(*study, *SMALL, "--out", out)
    found = ours(table("1", tmp_path, out))
    for alpha in ("alpha-0", "alpha-1"):
        folder, line = out / f"{alpha}-seed-0", found["imagenet100", alpha]
        last = [row for row in RunFolder(folder).metrics() if row["kind"] == "train"]
        assert line["ssl"] == pytest.approx(sum(row["ssl"] for row in last) / len(last))  # one epoch
        assert line["knn"] == result(folder, "knn")["accuracy"]
        assert line["linear"] == result(folder, "linear")["accuracy"]
        projector = (folder / "projector.safetensors").is_file()
        variance = json.loads(of_protocol(folder, "variance", layer="projector" if projector else "pooled").read_text())
        assert line["within"] == variance["within"]
        assert line["ratio"] == pytest.approx(100 * variance["ratio"])
    edit(out / "alpha-0-seed-0" / "evaluate" / "linear.json", lambda kept: kept | {"accuracy": 12.25})
    assert ours(table("1", tmp_path, out))["imagenet100", "alpha-0"]["linear"] == 12.25


# --- Tables 1 and 2, toy ----------------------------------------------------------------------------------------------


def test_tables_1_and_2_from_the_toy_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supancl.paper.toy_study.QUICK", TOY)
    folder = tmp_path / "toy"
    run("paper", "toy", "--quick", "--seeds", "1", "--out", folder)
    height, width = imread(folder / "tsne.png").shape[:2]
    assert width > 4 * height, "Figure 2: five panels in a row"
    assert all("| alpha-0.5 |" in (folder / f"table{number}.md").read_text() for number in (1, 2))
    rows = {f"alpha-{row['alpha']:g}": row for row in json.loads((folder / "toy.json").read_text())["rows"]}
    one, two = ours(table("1", tmp_path, folder)), ours(table("2", tmp_path, folder))
    for alpha, row in rows.items():
        assert (one["toy", alpha]["knn"], one["toy", alpha]["ratio"]) == (row["k-NN"], row["S_W/S_T"])
        assert two["", alpha]["interpolation 0.2"] == row["interpolation 0.2"]
    edit(
        folder / "toy.json",
        lambda content: content | {"rows": [row | {"interpolation 0.2": 12.25} for row in content["rows"]]},
    )
    assert ours(table("2", tmp_path, folder))["", "alpha-0.5"]["interpolation 0.2"] == 12.25


# --- Table 4 ----------------------------------------------------------------------------------------------------------


def test_table_4_from_an_sgd_probe_and_detectors(tmp_path: Path) -> None:
    data = colours(tmp_path / "own.npz", 3, 128, 12)
    voc = tmp_path / "voc"
    write_voc(voc, {"train": range(4), "val": range(4, 6)})
    folder = tmp_path / "runs" / "supsiam"
    heads = [
        word
        for key, value in {"projector.hidden": [16], "projector.out": 16, "predictor.hidden": [8]}.items()
        for word in ("--set", f"heads.{key}={value}")
    ]
    detector = [
        word
        for key, value in {**TINY, "iters": 2, "batch_size": 2}.items()
        for word in ("--set", f"{key}={json.dumps(value)}")
    ]
    with narrow_resnet18():
        small = ["--epochs", "1", "--device", "cpu", "--set", "schedule.warmup_epochs=0", "--set", "views.size=32"]
        small += ["--set", "encoder.name=resnet18", *heads]
        run("pretrain", "imagenet100.supsiam", "--data", data, *small, "--out", folder)
        run("evaluate", "linear", folder)
        run("evaluate", "linear", folder, "--probe", "sgd")
        words = ["--data", voc, "--year", "2012", *detector, "--seeds", "2", "--out", tmp_path / "runs" / "detect"]
        run("detect", "train", folder, *words)
        head = ("", "supsiam")
        found = ours(table("4", tmp_path, folder.parent))
        scores = [result(tmp_path / "runs" / "detect" / f"seed-{seed}", "detect") for seed in (0, 1)]
        assert found[head] == pytest.approx(
            {
                "linear": json.loads(of_protocol(folder, "linear", probe="sgd").read_text())["accuracy"],
                "ap": (scores[0]["AP"] + scores[1]["AP"]) / 2,
                "ap50": (scores[0]["AP50"] + scores[1]["AP50"]) / 2,
            }
        )
        edit(tmp_path / "runs" / "detect" / "seed-0" / "evaluate" / "detect.json", lambda kept: kept | {"AP": 50.0})
        edit(of_protocol(folder, "linear", probe="sgd"), lambda kept: kept | {"accuracy": 12.25})
        # the run has moved: its detectors are known by the encoder's checksum
        moved = folder.rename(tmp_path / "moved")
        found = ours(table("4", tmp_path, moved, tmp_path / "runs" / "detect"))
        assert found[head]["ap"] == pytest.approx((50 + scores[1]["AP"]) / 2)
        assert found[head]["linear"] == 12.25


# --- Table 8 ----------------------------------------------------------------------------------------------------------

CELLS = ("neither", "pool", "ema", "pool+ema")


@pytest.mark.parametrize(
    "command", [("paper", "table", "8"), ("paper", "collapse", "digits.supsiam")], ids=["one command", "collapse"]
)
def test_table_8(command: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = [word for word in DIGITS if word not in ("--family", "digits")]
    if command[1] == "table":
        run(*command, "--data", "digits", "--family", "digits", *flags, "--out", out)
    else:
        run(*command, "--data", "digits", *flags, "--out", out)
        for cell in CELLS:
            run("evaluate", "knn", out / f"{cell}-seed-0", "--k", 20)
    made = ours(table("8", tmp_path, out))
    for cell in CELLS:
        assert made["", cell]["knn"] == result(out / f"{cell}-seed-0", "knn")["accuracy"]
        assert made["", cell]["collapsed"] in (0, 1)
    edit(out / "pool-seed-0" / "evaluate" / "knn.json", lambda kept: kept | {"accuracy": 12.25})
    assert ours(table("8", tmp_path, out))["", "pool"]["knn"] == 12.25


# --- Table H.1 --------------------------------------------------------------------------------------------------------


def test_table_h1_in_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name, classes in (("cifar10", 2), ("cifar100", 3)):
        colours(root / f"{name}.npz", classes, 66, 12)
        monkeypatch.setitem(
            BENCHMARKS,
            name,
            replace(BENCHMARKS[name], classes=classes, split=(60, 6, 12), class_sizes={}, class_order=()),
        )
    out = tmp_path / "out"
    words = ["--jobs", "1", "--rows", "cifar10-supsiam,cifar100-supsiam"]
    made = table("H.1", tmp_path, "--benchmarks", root, *SMALL, *CNN, *words, "--out", out)
    assert set(made["plan"].values()) == {"done"}
    found = ours(made)
    assert set(found) == {("cifar10", "supsiam"), ("cifar100", "supsiam")}
    own = of_protocol(out / "cifar10-supsiam-seed-0", "linear", source=f"cifar10@{root}")
    assert json.loads(own.read_text())["judged"] == "test"
    crossed = of_protocol(out / "cifar10-supsiam-seed-0", "linear", source=f"cifar100@{root}")
    measured = [json.loads(file.read_text())["accuracy"] for file in (own, crossed)]
    assert list(found["cifar10", "supsiam"].values()) == measured
