"""Does this tree still compute what another commit computed, bit for bit? Run it before and after changing code.

    make net BASE=COMMIT        or: python tests/net.py COMMIT

Both trees run the cases of net_cases.py on this machine with one thread: tiny runs of every method, mode, source and
kind of label, and every command that measures or labels something. Compared are the numbers and names of results and
logs, and what checkpoints hold: encoder, projector, predictor, target branch, pool and optimizer. Sentences are not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "net_cases.py"
IF_BOTH = {"random numbers", "step"}  # parts of a checkpoint that are compared where both trees keep them
SHOWN = 3  # differences of a case, beside those of its checkpoint
Outcome = dict[str, Any]


def kept_file(base: str, only: str) -> Path:
    """Where the outcome of a commit is kept: it depends on the cases too, and on nothing else."""
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", base], check=True, capture_output=True, text=True)
    cases = hashlib.sha256(CASES.read_bytes() + only.encode()).hexdigest()
    return ROOT / "runs" / "net" / f"{commit.stdout.strip()[:12]}-{cases[:12]}.json"


def start(tree: Path, out: Path, only: str) -> subprocess.Popen[bytes]:
    out.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
        "SUPANCL_CACHE": str(out / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.Popen([sys.executable, str(CASES), only], cwd=out, env=environment)


def outcomes(base: str, only: str) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Of the base commit, which is kept for the next time, and of this tree, copied first: it may change meanwhile."""
    kept = kept_file(base, only)
    with TemporaryDirectory(prefix="net-") as scratch:
        trees = {side: Path(scratch) / f"tree-{side}" for side in ("before", "now")}
        shutil.copytree(ROOT / "src", trees["now"] / "src")
        runs = {"now": start(trees["now"], Path(scratch) / "now", only)}
        if not kept.exists():
            trees["before"].mkdir()
            archive = subprocess.run(["git", "-C", str(ROOT), "archive", base, "src"], check=True, capture_output=True)
            subprocess.run(["tar", "x", "-C", str(trees["before"])], input=archive.stdout, check=True)
            runs["before"] = start(trees["before"], Path(scratch) / "before", only)
        codes = [run.wait() for run in runs.values()]
        if any(codes):
            raise SystemExit("a tree could not run the cases")
        if "before" in runs:
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(scratch) / "before" / "found.json", kept)
        return json.loads(kept.read_text()), json.loads((Path(scratch) / "now" / "found.json").read_text())


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The dotted name of what differs, and both values; a field that only one side has counts."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if key not in IF_BOTH or (key in before and key in now):
                yield from differences(before.get(key), now.get(key), f"{name}.{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for at, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{name}[{at}]")
    elif before != now and not (before != before and now != now):  # NaN is NaN
        yield name, f"{str(before)[:60]} -> {str(now)[:60]}"


def describe(before: Outcome, now: Outcome) -> list[str]:
    """Lines on what differs in a case: the parts of the checkpoint by name, and the first of all else."""
    failed = [f"{side} FAILED: {of['failed']}" for side, of in (("before", before), ("now", now)) if "failed" in of]
    if failed:
        return failed
    found = list(differences(before, now))
    parts = [name.removeprefix(".state.") for name, _ in found if name.startswith(".state.")]
    others = [f"{name}: {values}" for name, values in found if not name.startswith(".state.")]
    more = [f"and {len(others) - SHOWN} more"] if len(others) > SHOWN else []
    return [f"checkpoint: {', '.join(parts)}"] * bool(parts) + others[:SHOWN] + more


def compare(base: str, only: str) -> int:
    before, now = outcomes(base, only)
    names = sorted(before.keys() | now.keys())
    found = {name: describe(before.get(name, {}), now.get(name, {})) for name in names}
    bad = [name for name in names if found[name]]
    for name in bad:
        print(f"DIFFERS  {name}", *found[name], sep="\n         ")
    print(f"{len(names) - len(bad)} of {len(names)} cases are equal to {base}")
    return 1 if bad or not names else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", nargs="?", default="HEAD", help="the commit to compare this tree with")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains this")
    args = parser.parse_args()
    sys.exit(compare(args.base, args.only))
