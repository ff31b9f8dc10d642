"""The step benchmark's contenders run and do the work they are compared by; its times mean nothing at this size."""

import importlib
import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from supancl.core.losses import Align
from supancl.core.pools import Queue
from supancl.errors import BadInput
from tests.files import mentions

ROOT = Path(__file__).parents[1]
PARTS = ("step_ours", "step_peers", "step_report", "step_rows", "step_runs", "step")


@pytest.fixture(scope="module")
def parts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "experiments" / "benchmarks"))
        yield {name: importlib.import_module(name) for name in PARTS}
    for name in PARTS:
        sys.modules.pop(name, None)


@pytest.fixture
def bench(parts: dict[str, ModuleType]) -> Any:
    return parts["step_rows"].Bench(torch.device("cpu"), tiny=True, rounds=2, seconds=0.01, ratio_rounds=2, workers=0)


def timed(entry: dict[str, Any]) -> bool:
    low, high = entry["spread"]
    return bool(0 < low <= entry["rate"] <= high) and entry["ms"] > 0


# --- rows -------------------------------------------------------------------------------------------------------------


def test_imagenet_row_has_the_released_step_beside_ours(parts: dict[str, ModuleType], bench: Any) -> None:
    (record,) = parts["step_rows"].imagenet_row(bench)
    (peer,) = record["peers"]
    assert timed(record["ours"])
    assert timed(peer)
    assert record["ratio"] == pytest.approx(record["ours"]["rate"] / peer["rate"])
    assert record["ours"]["how"] == "fp32, as written"


def test_ratio_rows_share_what_is_built(parts: dict[str, ModuleType], bench: Any) -> None:
    records = parts["step_rows"].ratio_rows(bench)
    assert [record["key"] for record in records] == ["ratio-supsiam", "ratio-supbyol"]
    assert list(bench.built) == [f"cifar100.{name}" for name in ("supsiam", "simsiam", "supbyol", "byol")]
    for record in records:
        low, high = record["middle_half"]
        assert low <= record["ratio"] <= high
        assert record["rounds"] == 2
    again = bench.ours("cifar100.supsiam")
    assert again is bench.built["cifar100.supsiam"]
    profiles = parts["step_runs"].profile_rows(bench)
    assert [record["key"] for record in profiles] == ["profile-cifar100.supsiam", "profile-cifar100.supbyol"]
    assert profiles[0]["waits"]["aten::item"] > 0  # a CPU step looks at its loss; the count can tell
    assert profiles[0]["waits"]["Memcpy DtoH"] == 0
    assert profiles[0]["top"][0]["us"] >= profiles[0]["top"][1]["us"] > 0


def test_a_step_beyond_the_schedule_is_refused(parts: dict[str, ModuleType], bench: Any) -> None:
    own = bench.ours("cifar100.supsiam")
    own.trainer.step = own.trainer.steps
    with pytest.raises(RuntimeError, match="fewer --rounds"):
        own.step()


def test_a_compiler_that_fails_is_noted_and_other_faults_are_not_hidden(
    parts: dict[str, ModuleType], bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, cpu = parts["step_ours"], torch.device("cpu")
    chosen = ours.settled("cifar100.supsiam", cpu, {**bench.settings(), "train.compile": True})

    def refusing(error: Exception) -> Any:
        def refuses(*args: Any) -> Any:
            raise error

        return lambda function: refuses

    broken = torch._dynamo.exc.BackendCompilerFailed(compile, RuntimeError("no C compiler"), None)
    monkeypatch.setattr(torch, "compile", refusing(broken))
    own = ours.ours(chosen, bench.cifar(), cpu)
    assert own.facts["how"] == "fp32, as written"
    assert own.facts["note"].startswith("the step could not be compiled (")
    advance, said = ours.Trainer.advance, "the views could not be compiled (no C compiler)"
    with monkeypatch.context() as partly:
        partly.setattr(ours.Trainer, "advance", lambda self: (self.compilation.failures.append(said), advance(self)))
        assert ours.ours(chosen.with_set({"train.compile": False}), bench.cifar(), cpu).facts["note"] == said
    monkeypatch.setattr(torch, "compile", refusing(ValueError("a fault of ours")))
    with pytest.raises(ValueError, match="a fault of ours"):
        ours.ours(chosen, bench.cifar(), cpu)


def test_sweeps_and_folder(parts: dict[str, ModuleType], bench: Any) -> None:
    sweeps = parts["step_rows"].sweep_rows(bench)
    assert [record["key"] for record in sweeps] == [
        "sweep-batch", "sweep-pool", "sweep-classes-prototypes", "sweep-classes-class-queues",
    ]  # fmt: skip
    assert [point["at"] for point in sweeps[0]["points"]] == [4, 8]
    assert all(timed(point) for record in sweeps for point in record["points"])
    large, small = parts["step_rows"].folder_rows(bench)
    assert (large["key"], small["key"]) == ("folder-large", "folder-small")
    assert large["ratio"] > 0
    assert "50 in a cached folder" in large["work"]  # of 60, one of each class is held out


def test_command_row(parts: dict[str, ModuleType], bench: Any) -> None:
    (record,) = parts["step_runs"].command_row(bench)
    assert timed(record["ours"])
    assert 0 < record["first_row_s"] < record["whole_s"]
    if "wall" in record:  # two epochs may end between two looks
        assert record["wall"]["rate"] > 0


def test_agree_needs_data(parts: dict[str, ModuleType], bench: Any) -> None:
    (record,) = parts["step_runs"].agree_row(bench)
    assert record["note"] == "needs --data"


def test_a_run_that_fails_says_why(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("wb") as said:
        process = subprocess.Popen([sys.executable, "-c", "print('no data at x'); raise SystemExit(2)"], stdout=said)
        with pytest.raises(RuntimeError, match=mentions("2", "no data at x")):
            parts["step_runs"].ended(process, log)


# --- peers ------------------------------------------------------------------------------------------------------------


def test_without_lightly_the_row_says_so(
    parts: dict[str, ModuleType], bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lightly", "lightly.data"):
        monkeypatch.setitem(sys.modules, name, None)
    (record,) = parts["step_rows"].cifar_row("supcon", bench)
    assert record["note"].startswith("peer not installed (lightly")
    assert timed(record["ours"])
    assert "ratio" not in record


if importlib.util.find_spec("lightly") is not None:  # an extra: `make bench-step` brings it

    @pytest.mark.parametrize("method", ["supsiam", "supbyol", "supcon"])
    def test_cifar_rows_beside_lightly(parts: dict[str, ModuleType], bench: Any, method: str) -> None:
        (record,) = parts["step_rows"].cifar_row(method, bench)
        fed = [peer for peer in record["peers"] if not peer.get("bound")]
        assert len(fed) == 2
        assert len(record["peers"]) == 3
        assert record["ratio"] == pytest.approx(record["ours"]["rate"] / max(peer["rate"] for peer in fed))

    def test_cpu_row_beside_lightly(parts: dict[str, ModuleType], bench: Any) -> None:
        (record,) = parts["step_rows"].cpu_row("digits", bench)
        assert record["key"] == "cpu-digits"
        assert record["ratio"] == pytest.approx(record["ours"]["rate"] / record["peers"][0]["rate"])

    def test_lightly_does_the_same_work_as_ours(parts: dict[str, ModuleType], bench: Any) -> None:
        """Same weights, same views: the same loss as our branches and Align."""
        chosen = parts["step_ours"].settled("cifar100.simsiam", torch.device("cpu"), bench.settings())
        own = parts["step_ours"].ours(chosen, bench.cifar(), torch.device("cpu")).trainer.model.branches
        theirs = parts["step_peers"].LightlyModel("simsiam", chosen)
        pairs = (
            (theirs.backbone, own.encoder),
            (theirs.projection.layers, own.projector),
            (theirs.prediction.layers, own.predictor),
        )
        for module, other in pairs:
            module.load_state_dict(other.state_dict())
        views = torch.randn(2, 8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        anchors, targets = own(views)
        expected = Align(alpha=1.0)(anchors, targets, torch.zeros(8, dtype=torch.long), None).total
        torch.testing.assert_close(theirs(*views), expected)


def test_released_step_looks_up_what_our_pool_does(parts: dict[str, ModuleType], bench: Any) -> None:
    chosen = parts["step_ours"].settled("imagenet100.supsiam", torch.device("cpu"), bench.settings())
    step = parts["step_peers"].ReleasedStep(chosen, torch.device("cpu"), classes=2000)
    own = F.normalize(torch.randn(8, 16), dim=1)
    queue = Queue(step.size, 16, 2000)
    queue.push(step.pool, step.pool_labels)
    step.labels[0] = 1999
    step.pool_labels[step.pool_labels == 1999] = 0  # a class that the pool has not
    queue = Queue(step.size, 16, 2000)
    queue.push(step.pool, step.pool_labels)
    torch.testing.assert_close(step.class_means(own), queue.class_mean(step.labels, own))
    torch.testing.assert_close(step.class_means(own)[0], own[0])
    before = next(step.online.parameters()).clone()
    step()
    assert not torch.equal(before, next(step.online.parameters()))
    assert step.at == len(own)
    assert torch.equal(step.pool_labels[:8], step.labels)
    loss, ssl, sup = step.seen
    assert loss == pytest.approx((ssl + sup) / 2, abs=1e-6)


# --- the record -------------------------------------------------------------------------------------------------------


def a_record(key: str, rate: float, peer: float, **more: Any) -> dict[str, Any]:
    def entry(name: str, value: float) -> dict[str, Any]:
        return {"name": name, "rate": value, "spread": [value - 1, value + 1], "ms": 256e3 / value, "peak_gb": 1.5}

    return {
        "key": key,
        "work": f"work of {key}",
        "batch": 256,
        "ours": entry("ours", rate) | {"first_s": 40.0},
        "peers": [entry("peer", peer), entry("bound", 9 * peer) | {"bound": True}],
        "ratio": rate / peer,
        "commit": "abc",
        "date": "2000-01-01 00:00",
        "versions": {"torch": "2.11"},
        "hardware": "a GPU",
        **more,
    }


def test_rows_measured_at_different_times_are_merged(parts: dict[str, ModuleType], tmp_path: Path) -> None:
    report, file = parts["step_report"], tmp_path / "kept" / "rows.json"
    report.merged(file, [a_record("vit", 3000, 1000)])
    report.merged(file, [a_record("supcon", 123456.789, 9000, commit="def")])
    kept = report.merged(file, [{"key": "vit", "work": "vit", "note": "failed: out of memory"}])
    assert [(row["key"], row["commit"]) for row in kept] == [("supcon", "def"), ("vit", "abc")]
    assert report.read(file)[0]["ours"]["rate"] == 123460  # five digits
    report.merged(file, [a_record("vit", 4000, 1000, commit="ghi")])
    assert report.read(file)[1]["commit"] == "ghi"


def test_table_gives_rates_and_ratios(parts: dict[str, ModuleType]) -> None:
    report = parts["step_report"]
    rows = [
        a_record("supcon", 35000, 10000),
        a_record("command", 40000, 10000, wall={"rate": 32000.0, "epoch_s": 1.5}),
        {"key": "agree", "work": "agree", "note": "needs --data"},
    ]
    lines = report.table(rows).splitlines()
    assert "3.50" in lines[1]
    assert "10,000" in lines[1]  # the bound is not the peer
    assert "32,000 by the clock, 40,000 by its log" in lines[2]
    assert lines[3] == "agree: needs --data"


def test_what_was_not_run_itself_stands_apart(parts: dict[str, ModuleType]) -> None:
    """A figure of another machine, and a rewrite from a description, are no peers measured side by side."""
    report = parts["step_report"]
    published = {"name": "a library (published)", "rate": 500.0}
    rewrite = a_record("imagenet", 3000, 800)["peers"][0] | {"name": "released code's step, from its description"}
    rows = [
        a_record("supcon", 35000, 10000),
        a_record("vit", 2000, 1, peers=[published], ratio=4.0),
        a_record("imagenet", 3000, 1, peers=[rewrite], ratio=3.75),
    ]
    by_work = {line.split("  ")[0]: line for line in report.table(rows).splitlines()}
    assert "4.00" not in by_work["work of vit"]
    assert "3.75" not in by_work["work of imagenet"]
    assert "3.50" in by_work["work of supcon"]
    side_by_side, apart = report.markdown(rows).split("For orientation")
    for text in (report.short(rows), side_by_side):
        assert "a library" not in text
        assert rewrite["name"] not in text
    assert "| a library (published) | 500.0 | 4.0 | published figure, from another machine |" in apart
    assert rewrite["name"] in apart


def test_command_gets_lightlys_simsiam_of_the_same_call(parts: dict[str, ModuleType]) -> None:
    command = a_record("command", 40000, 1, wall={"rate": 36000.0, "epoch_s": 1.5}, peers=[])
    parts["step"].beside_command([a_record("supsiam", 36000, 9000), command])
    assert command["peers"][0]["rate"] == 9000
    assert command["ratio"] == 4


def test_the_whole_script(parts: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    records = parts["step"].main(
        [
            "--rows",
            "imagenet",
            "--tiny",
            "--device",
            "cpu",
            "--rounds",
            "1",
            "--seconds",
            "0.01",
            "--commit",
            "x",
            "--json",
            str(file),
        ]
    )
    assert records[0]["commit"] == "x"
    assert json.loads(file.read_text())["rows"][0]["versions"]["torch"] == version("torch")
    assert "ratio" in capsys.readouterr().out.splitlines()[-2]
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- rows -->\nold\n<!-- end rows -->\nafter\n")
    parts["step"].main(["--markdown", str(file), "--into", str(document)])
    text = document.read_text()
    assert text.startswith("before\n<!-- rows -->\n| work | batch |")
    assert text.endswith("<!-- end rows -->\nafter\n")
    assert "old" not in text
    document.write_text("no marks")
    with pytest.raises(BadInput, match=mentions("page.md", "<!-- rows -->", "<!-- end rows -->")):
        parts["step"].main(["--markdown", str(file), "--into", str(document)])
    with pytest.raises(SystemExit, match=mentions("row", "cifar")):
        parts["step"].main(["--rows", "fast"])


def test_the_page_holds_the_kept_figures(parts: dict[str, ModuleType]) -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"<!-- (step-\w+) -->\n(.*?)<!-- end \1 -->", page, re.DOTALL))
    kept = {
        file.stem: parts["step_report"].markdown(parts["step_report"].read(file))
        for file in (ROOT / "experiments" / "benchmarks" / "results").glob("step-*.json")
    }
    for name, text in shown.items():
        assert text == kept.get(name, ""), (
            f"python experiments/benchmarks/step.py --markdown experiments/benchmarks/results/{name}.json --into"
        )
    assert set(kept) == set(shown) == {"step-cpu", "step-h200"}


def test_the_readme_holds_the_kept_figures(parts: dict[str, ModuleType]) -> None:
    page, report = (ROOT / "README.md").read_text(encoding="utf-8"), parts["step_report"]
    found = re.search(r"<!-- step-h200 -->\n(.*?)<!-- end step-h200 -->", page, re.S)
    assert found
    assert found[1] == report.short(report.read(ROOT / "experiments" / "benchmarks" / "results" / "step-h200.json"))
    assert "lightly" in found[1]
    assert "released" not in found[1]  # what was not measured side by side is in docs/performance.md only
