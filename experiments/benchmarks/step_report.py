"""For step.py: save records as JSON, print them, and write the tables of docs/performance.md."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from supancl.reports.tables import Table, to_markdown, to_text
from supancl.stats import seed_stats

Record = dict[str, Any]

ORDER = (
    "command",
    "supsiam",
    "supbyol",
    "supcon",
    "imagenet",
    "vit",
    "ratio-",
    "folder-",
    "cpu-",
    "sweep-",
    "profile-",
    "agree",
)


# --- keeping ----------------------------------------------------------------------------------------------------------


def stamped(record: Record, commit: str) -> Record:
    """The record with commit, date, versions and hardware."""
    return {
        **record,
        "commit": commit,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "versions": versions("torch", "torchvision", "timm", "lightly"),
        "hardware": hardware(record["key"].startswith("cpu-")),
    }


def hardware(cpu: bool) -> str:
    if torch.cuda.is_available() and not cpu:
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} threads of {processor()}"


def processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def versions(*names: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit_here() -> str:
    """The commit of the code, marked where files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def merged(file: Path, records: Iterable[Record]) -> list[Record]:
    """What the file holds, with these records in place of those of the same key; a failed one replaces nothing."""
    kept = {record["key"]: record for record in read(file)} if file.exists() else {}
    for record in records:
        if record["key"] not in kept or not failed(record):
            kept[record["key"]] = record
    rows = sorted(kept.values(), key=place)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"rows": [rounded(row) for row in rows]}, indent=1) + "\n")
    return rows


def read(file: Path) -> list[Record]:
    rows: list[Record] = json.loads(file.read_text())["rows"]
    return rows


def failed(record: Record) -> bool:
    return str(record.get("note", "")).startswith("failed")


def place(record: Record) -> tuple[int, str]:
    key = record["key"]
    return next((n for n, start in enumerate(ORDER) if key.startswith(start)), len(ORDER)), key


def rounded(value: Any) -> Any:
    """Round to five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


# --- the table --------------------------------------------------------------------------------------------------------

HEAD = ("work", "batch", "images/s", "ms/step", "peer", "peer images/s", "ratio", "peak GB",
        "first step s", "commit", "torch")  # fmt: skip


def speeds(records: list[Record]) -> list[Record]:
    return [record for record in records if "ours" in record]


def cells(record: Record) -> list[str]:
    own = record["ours"]
    low, high = own["spread"]
    rate = f"{number(own['rate'])} ({number(low)}-{number(high)})"
    if "wall" in record:
        rate = f"{number(record['wall']['rate'])} by the clock, {number(own['rate'])} by its log"
    best = best_peer(record)
    ratio = None if best is None else record.get("ratio")
    half = record.get("middle_half")
    said = "" if ratio is None else f"{ratio:.3f} ({half[0]:.3f}-{half[1]:.3f})" if half else f"{ratio:.2f}"
    peer = ("", "") if best is None else (best["name"], number(best["rate"]))
    first, again = given(own.get("first_s"), ".1f"), given(own.get("first_again_s"), ".1f")
    return [
        record["work"],
        str(record["batch"]),
        rate,
        f"{own['ms']:.2f}",
        *peer,
        said,
        given(own.get("peak_gb"), ".2f"),
        f"{first}, then {again}" if again else first,
        record["commit"],
        record["versions"]["torch"],
    ]


def best_peer(record: Record) -> Record | None:
    """The fastest peer that does the same work and ran in the same process as ours."""
    peers = [peer for peer in record["peers"] if not peer.get("bound") and not reservation(peer)]
    return max(peers, key=lambda peer: float(peer["rate"]), default=None)


def reservation(peer: Record) -> str:
    """Why a peer's rate is only for orientation; empty if the peer itself ran in the same process as ours."""
    if "spread" not in peer:  # it was not timed here
        return "published figure, from another machine"
    if peer["name"].startswith("released code's step"):
        return "our rewrite of its description, not the code itself; run in turns with ours"
    return ""


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def given(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def table(records: list[Record]) -> str:
    """For a terminal."""
    notes = [f"{record['work']}: {record['note']}" for record in records if "note" in record]
    return to_text(Table(HEAD, [cells(record) for record in speeds(records)], notes=notes)).rstrip()


# --- for the documentation --------------------------------------------------------------------------------------------


def markdown(records: list[Record]) -> str:
    """Every table of the saved records, as it stands between the markers in docs/performance.md."""
    parts = [_markdown(HEAD, (cells(record) for record in speeds(records)))] if speeds(records) else []
    if apart := orientation(records):
        parts += ["For orientation only, because the peer itself was not run here:", apart]
    every = [
        [
            record["key"],
            each["name"],
            number(each["rate"]),
            given(each.get("ms"), ".2f"),
            given(each.get("peak_gb"), ".2f"),
        ]
        for record in speeds(records)
        for each in record["peers"]
    ]
    if every:
        hows = dict.fromkeys(record["ours"].get("how", "") for record in speeds(records))
        parts += [
            f"All peers (ours ran with {' or '.join(hows)}):",
            _markdown(("row", "peer", "images/s", "ms/step", "peak GB"), every),
        ]
    parts += [part for record in records for part in detailed(record)]
    measured = sorted(
        {
            f"{record['hardware']}{_load(record)}, {record['date'][:10]}, commit {record['commit']},\n  "
            + ", ".join(f"{name} {text}" for name, text in record["versions"].items())
            for record in records
        }
    )
    return "\n\n".join([*parts, "Measured on:", "\n".join(f"- {line}" for line in measured)]) + "\n"


def detailed(record: Record) -> list[str]:
    """What a record has besides its speed: a sweep, a profile, accuracies of both paths, a note."""
    parts: list[str] = []
    if "points" in record:
        points = [
            [f"{point['at']:,}", number(point["rate"]), f"{point['ms']:.2f}", given(point["peak_gb"], ".2f")]
            for point in record["points"]
        ]
        parts += [
            f"{record['work']} ({record['points'][0]['how']}; commit {record['commit']}):",
            _markdown((record["key"].removeprefix("sweep-"), "images/s", "ms/step", "peak GB"), points),
        ]
    if "waits" in record:
        waits = record["waits"]
        counts = (
            ", ".join(f"{name} {count}" for name, count in waits.items())
            if any(waits.values())
            else f"{', '.join(waits)}: none"
        )
        top = [
            [kernel["kernel"].replace("|", "/"), f"{kernel['us']:.0f}", f"{kernel['times']:.0f}"]
            for kernel in record["top"]
        ]
        parts += [
            f"<details><summary>{record['work']}: {record['kernel_us']:,.0f} us per step in kernels</summary>",
            f"{record['how']}, commit {record['commit']}. Calls in the loop that wait for the GPU:\n{counts}.",
            _markdown(("kernel", "us per step", "calls per step"), top),
            "</details>",
        ]
    if "knn" in record:
        lines = [
            [
                way,
                ", ".join(f"{score:.2f}" for score in scores),
                f"{mean:.2f}",
                f"{sd:.2f}" if len(scores) > 1 else "",
            ]
            for way, scores in record["knn"].items()
            for mean, sd in [seed_stats(scores)]
        ]
        parts += [
            f"{record['work']} (commit {record['commit']}):",
            _markdown(("path", "seeds 0, 1, ...", "mean", "standard deviation"), lines),
        ]
    if "note" in record:
        parts.append(f"{record['work']}: {record['note']}.")
    return parts


def short(records: list[Record]) -> str:
    """One sentence for the README: how many times as fast as the fastest other library."""
    pairs = [(record, best_peer(record)) for record in speeds(records)]
    measured = [(record, peer) for record, peer in pairs if peer is not None and not peer["name"].startswith("ours")]
    ratios = sorted(f"{record['ours']['rate'] / peer['rate']:.1f}" for record, peer in measured)
    libraries = " and ".join(sorted({peer["name"].split()[0] for _, peer in measured}))
    works = ", ".join(record["work"].partition(":")[0].partition(".")[2] for record, _ in measured)
    return (
        f"Training is {ratios[0]} to {ratios[-1]} times as fast as with {libraries} (images per second on one H200, "
        "CIFAR ResNet-18,\n"
        f"augmentation included, measured in one run: {works}; [performance](docs/performance.md)).\n"
    )


COMPARISON = ("work", "images/s", "compared with", "images/s", "ratio")


def comparison_row(record: Record, peer: Record) -> list[str]:
    return [
        record["work"],
        number(record["ours"]["rate"]),
        peer["name"],
        number(peer["rate"]),
        f"{record['ours']['rate'] / peer['rate']:.1f}",
    ]


def orientation(records: list[Record]) -> str:
    """Table of the peers that were not run themselves, and what their figures are."""
    rows = [
        [*comparison_row(record, peer), why]
        for record in speeds(records)
        for peer in record["peers"]
        if (why := reservation(peer))
    ]
    return _markdown((*COMPARISON, "what it is"), rows) if rows else ""


def _load(record: Record) -> str:
    """The load just before the row: on a CPU it matters what else was running."""
    return f" (load {record['load_before']:.1f} before)" if record["key"].startswith("cpu-") else ""


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    return to_markdown(Table(list(head), [list(row) for row in rows])).rstrip()
