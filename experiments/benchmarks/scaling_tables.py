"""Tables of what scaling.py measured, and a model of a run on 64 GPUs over a billion images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supancl.files import replace_section
from supancl.reports.tables import Table, to_markdown

Row = dict[str, Any]

# assumptions of the model: not measured here
IMAGES, PER_SHARD = 10**9, 10_000
RANKS, PER_NODE, BATCH, VIEWS = 64, 8, 128, 2  # batch: of one GPU
LINK = 50e9  # bytes per second in and out of a GPU: 400 Gb/s
USED = 0.7  # fraction of it that collectives reach
LATENCY = 40e-6  # seconds of a small collective over 64 GPUs
CORES = 16  # host cores per GPU
WRITING = 2e9  # bytes per second when writing checkpoints


# --- tables -----------------------------------------------------------------------------------------------------------


def shown(value: object, column: str = "") -> str:
    if value is None:
        return "-"
    if column.endswith("bytes") or "_bytes_per_" in column:
        return sized(float(value))  # type: ignore[arg-type]
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def sized(size: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.3g} B"


# of results from before streams held their order and index in memory
OUTDATED = ("windowed_first_ms", "windowed_step_ms", "windowed_bytes", "memory_bytes_per_shard")
LEFT_OUT = ("what", *OUTDATED)
HEADERS = {
    "whole_bytes": "full permutation: bytes",
    "whole_first_ms": "full permutation: first batch ms",
    "index_us": "index us per image",
    "open_us": "open us per image",
    "disk_bytes_per_image": "disk per image",
    "per_thread": "images per second and thread",
    "gather_ms": "gather targets ms",
    "norm_ms": "batch norm sum ms",
    "gradient_1m_ms": "1M gradients ms",
    "gradient_33m_ms": "33M gradients ms",
}


def table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    words = [HEADERS.get(column, column.replace("_", " ")) for column in columns]
    cells = [[shown(row.get(column), column) for column in columns] for row in rows]
    return to_markdown(Table(words, cells)).rstrip()


TITLES = {
    "classes": "Pools as classes grow",
    "slots": "The queue as its slots grow",
    "order": "The order of an epoch as images grow",
    "schedule": "Learning rates and momentum of all steps of an epoch",
    "stream": "Tar shards: indexing, opening, decoding",
    "step": "A ResNet-50 step with different pools, and the size of its checkpoint",
    "ranks": "Collectives between processes of one machine (gloo, no GPU), and 100,000 prototypes sharded over them",
}


def tables(result: Row) -> str:
    """Every part as a table, after a line with the conditions."""
    parts = [", ".join(result[part] for part in ("about", "measured") if part in result) + "."]
    for name, rows in result["parts"].items():
        parts.append(f"**{TITLES[name]}**")
        for what in dict.fromkeys(row.get("what") for row in rows):
            mine = [row for row in rows if row.get("what") == what]
            parts.append(table([{key: value for key, value in row.items() if key not in LEFT_OUT} for row in mine]))
    if all(part in result["parts"] for part in ("step", "stream", "order", "schedule")):
        overhead = beside(result["parts"]["step"])
        if overhead is not None:
            parts.append(f"A million prototypes add {overhead:+.1%} to the step of SimSiam, which has no pool.")
    return "\n\n".join(parts)


def beside(rows: Sequence[Row]) -> float | None:
    """Relative cost of a million prototypes: captured step with them against captured step without a pool."""
    if "step_ms" not in rows[0]:
        return None
    return float(rows[-2]["step_ms"]) / float(rows[0]["step_ms"]) - 1


# --- the model --------------------------------------------------------------------------------------------------------


def ring(numbers: float, each: int = 4) -> float:
    """Bytes that one GPU sends in an all-reduce of `numbers`."""
    return 2 * (RANKS - 1) / RANKS * numbers * each


def model(result: Row) -> str:
    """Cost of the run, from measured numbers, counted bytes and the assumptions above."""
    step = result["parts"]["step"][-1]
    index, decode = (
        next(row for row in result["parts"]["stream"] if row.get("what") == what) for what in ("index", "decode")
    )
    gathered = (RANKS - 1) * BATCH * (256 * 4 + 8)
    collectives = 2 * VIEWS * step["norms"]
    norm = VIEWS * ((RANKS - 1) * 4 * (2 * step["norm_channels"] + step["norms"]) + ring(2 * step["norm_channels"]))
    speed = LINK * USED
    waits = {"gathers": gathered / speed + 2 * LATENCY, "norm": norm / speed + collectives * LATENCY}
    joined = step["step_ms"] / 1e3 + sum(waits.values())
    rates = {  # name -> images per second, and their source
        "one GPU alone": (BATCH / (step["step_ms"] / 1e3), "measured, step not captured"),
        "one GPU with the network": (BATCH / joined, "measured step plus the network rows below"),
        f"{CORES} cores that decode": (
            decode["per_thread"] * CORES,
            "measured per thread with all threads busy, times 16",
        ),
    }
    first = min(rates, key=lambda name: rates[name][0])
    slowest, gradients = rates[first][0], ring(step["parameters"])
    rows = [
        *((f"images per second: {name}", shown(rate), how) for name, (rate, how) in rates.items()),
        ("one epoch, at the slowest of these", f"{IMAGES / RANKS / slowest / 3600:.1f} h", "1B images, 64 GPUs"),
        (
            "gradients that a GPU sends per step",
            f"{sized(gradients)}, {gradients / speed * 1e3:.1f} ms",
            "counted; hidden behind backward if that takes longer; half in bf16",
        ),
        ("targets and labels gathered", f"{sized(gathered)}, {waits['gathers'] * 1e3:.2f} ms", "counted; not hidden"),
        (
            "synchronised batch norm",
            f"{collectives} collectives, {sized(norm)}, {waits['norm'] * 1e3:.1f} ms",
            "counted; not hidden; nearly all of it latency",
        ),
        (
            "cores that one GPU needs for decoding",
            f"{BATCH / joined / decode['per_thread']:.0f}",
            "the last two rates above",
        ),
        *kept_and_read(result, index, decode, slowest),
    ]
    return (
        table([{"quantity": what, "value": takes, "source": how} for what, takes, how in rows])
        + f"\n\nThe slowest of the first three is the first limit: {first}."
    )


def kept_and_read(result: Row, index: Row, decode: Row, slowest: float) -> list[tuple[str, str, str]]:
    """The model's rows about storage and memory; `slowest` is the images per second of one GPU."""
    schedule, step = (result["parts"][part][-1] for part in ("schedule", "step"))
    steps = IMAGES // (RANKS * BATCH)  # of an epoch
    return [
        (
            "storage reads of a node with 8 GPUs",
            f"{sized(slowest * PER_NODE * decode['file_bytes'])}/s in {slowest * PER_NODE:,.0f} reads/s",
            f"files of {sized(decode['file_bytes'])}, as measured here",
        ),
        (
            "order and index, in memory per rank",
            sized(40 * IMAGES),
            "8 bytes per image for the order, three times, and 16 for the index",
        ),
        ("index, on disk", sized(IMAGES * index["disk_bytes_per_image"]), "measured per image"),
        (
            "indexing, once, with 64 processes",
            f"{IMAGES * index['index_us'] / 1e6 / RANKS / 3600:.2f} h",
            "measured per image, if storage keeps up",
        ),
        (
            "opening, at every start",
            f"{IMAGES / PER_SHARD * index['open_ms_per_shard'] / 1e3:.0f} s",
            "measured per shard of 2,000 images",
        ),
        ("prototypes, on each GPU", sized(step["pool_bytes"]), "measured; 1/64 of it if sharded"),
        (
            "one checkpoint",
            f"{sized(step['checkpoint_bytes'])}, {step['checkpoint_bytes'] / WRITING:.1f} s",
            "measured bytes, written by one rank",
        ),
        (
            "schedules of an epoch",
            f"{sized(24 * steps)}, {steps * schedule['us_per_step'] / 1e6:.1f} s at its start",
            f"{steps:,} steps; measured per step",
        ),
    ]


# --- into the page ----------------------------------------------------------------------------------------------------


def put_into(page: Path, result: Row) -> None:
    """Write the tables of this device between the page's markers; for a GPU also the model."""
    blocks = {result["device"]: tables(result)} | ({"model": model(result)} if result["device"] == "cuda" else {})
    for name, content in blocks.items():
        replace_section(page, f"scaling: {name}", f"\n{content}\n\n")
