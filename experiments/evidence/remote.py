"""Work through a queue on a remote machine that is available for a short time and takes little data at once.

    python -m experiments.evidence.remote runs/gpu1 --start 3 --queue FILE --commit 1234567   # data, then drivers
    python -m experiments.evidence.remote runs/gpu2                                           # further data
    python -m experiments.evidence.remote --wait 500 --collect OUT                            # what came out so far

Drivers take the lines of FILE in turn (`experiments.evidence.commands`); a later FILE adds to them. A line is a
command, or runs of a plan that are trained and evaluated one after the other: `row imagenet tuned-simsiam-2
detect-simsiam-2`. Put long runs first and a detector after its encoder; three drivers keep a GPU busy while one of them
evaluates. `python -m experiments.evidence plan --plan NAME` lists what is left of a plan.

Each folder that is named holds files as they were sent (images of one data set in one or more files, and once the
unpack.py that knows them). A data set is unpacked when all its files are there, and appears in the work folder at once
or not at all, because drivers that are running look for it. Drivers run in sessions of their own and outlive the
command that started them; a later command finds them by their process ids. They run from a copy of the code, since the
next command may bring other code. Nothing here needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.evidence.commands import QUEUE

ROOT = Path(__file__).resolve().parents[2]
# data set of unpack.py -> its files, and the unpacked result
SETS: dict[str, tuple[tuple[str, ...], str]] = {
    "mini_imagenet": (("mini_imagenet_64px.npz",), "mini_imagenet.npz"),
    "gtsrb": (("gtsrb_32px_test.zip",), "gtsrb"),
    "omniglot": (("omniglot.tar.xz",), "omniglot"),
    "pets": (("oxford_pets_s64.zip",), "pets"),
    "cifar10": (("cifar10_jpegq88.npz",), "cifar10.npz"),
    "cifar100": (
        tuple(f"cifar100_lossless_{part}.npz" for part in ("train0", "train1", "train2", "test")),
        "cifar100.npz",
    ),
    "voc": (("voc2012_mini_s192.zip",), "VOCdevkit"),
}
RESULTS = ROOT / "experiments" / "results"
FIRST_PLAN = "cifar100"  # its results are not in a folder of their own
LONG = "100000"  # seconds: a run of the queue is begun whatever a driver expects of it
KERNELS = "kernels.tar.gz"  # the compiler's kernels, sent in chunks
PART = 14 * 2**20  # bytes per file that is sent back
PARTS = 4
ROOM = 16 * 2**30  # free bytes needed to keep runs in memory


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    remote = Remote(args.work)
    for folder in args.folders:
        remote.take(folder)
    remote.unpack(SETS)
    if args.queue:
        remote.add_commands(args.queue, args.memory, args.commit, args.start or len(remote.running()))
    if args.start:
        remote.start(args)
    remote.wait(args.wait)
    remote.tell()
    if args.collect:
        remote.collect(args.collect, args.kernels, args.also)
    return 0


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m experiments.evidence.remote", description=(__doc__ or "").partition("\n")[0]
    )
    arguments.add_argument("folders", nargs="*", type=Path, help="files that were sent: data sets, unpack.py, kernels")
    arguments.add_argument(
        "--work", type=Path, default=ROOT / "runs" / "remote", help="gets data/, runs/, results/, logs/"
    )
    arguments.add_argument("--start", type=int, default=0, metavar="N", help="drivers side by side, if none is running")
    arguments.add_argument(
        "--memory",
        type=Path,
        default=Path("/dev/shm"),
        help="folder in memory for run folders, if it has room: a ResNet-50 writes a checkpoint of 300 MB a second",
    )
    arguments.add_argument("--queue", type=Path, metavar="FILE", help="commands and rows of plans, one per line")
    arguments.add_argument(
        "--until", type=float, default=1500.0, metavar="SECONDS", help="no line is begun after so many seconds"
    )
    arguments.add_argument("--commit", default="", help="of the code")
    arguments.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help="or until every driver has ended")
    arguments.add_argument("--collect", type=Path, metavar="DIR", help="gets results.tar.gz and logs.tar.gz")
    arguments.add_argument(
        "--also", nargs="*", default=[], metavar="GLOB", help="files of results/ to collect as they are"
    )
    arguments.add_argument(
        "--kernels", action="store_true", help="collect the compiler's kernels too, for the next machine"
    )
    return arguments


class Remote:
    """The work folder of one machine."""

    def __init__(self, work: Path) -> None:
        self.work = work.resolve()
        self.raw, self.data, self.logs = (self.work / name for name in ("raw", "data", "logs"))
        self.results, self.code, self.packages = (self.work / name for name in ("results", "snapshot", "packages"))
        self.kernels = self.work / "kernels"
        for folder in (self.raw, self.data, self.logs, self.results, self.packages, self.kernels):
            folder.mkdir(parents=True, exist_ok=True)

    # --- data ---------------------------------------------------------------------------------------------------------

    def take(self, folder: Path) -> None:
        """Copy what was sent; its folder packages/ is put on the drivers' Python path."""
        if not folder.is_dir():
            raise SystemExit(f"{folder}: no such folder; name one that was sent")
        for path in sorted(folder.iterdir()):
            if path.name == "packages":
                shutil.copytree(path, self.packages, dirs_exist_ok=True)
            elif path.is_file():
                shutil.copyfile(path, self.raw / path.name)

    def unpack(self, names: Iterable[str]) -> None:
        """Unpack the data sets whose files are complete, several at a time; each once."""
        complete = [name for name in names if name in SETS and self.is_complete(name) and not self.has(name)]
        with ThreadPoolExecutor(max_workers=4) as threads:
            for line in threads.map(self.unpack_one, complete):
                say(line)

    def is_complete(self, name: str) -> bool:
        return all((self.raw / file).exists() for file in SETS[name][0])

    def has(self, name: str) -> bool:
        return (self.data / SETS[name][1]).exists()

    def unpack_one(self, name: str) -> str:
        started, temporary = time.monotonic(), self.work / f"unpacking-{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        words = [sys.executable, str(self.raw / "unpack.py"), str(temporary), name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        output = SETS[name][1]
        if done.returncode or not (temporary / output).exists():
            return f"{name}: could not be unpacked: {(done.stderr or done.stdout).strip()[-300:]}"
        os.replace(temporary / output, self.data / output)
        shutil.rmtree(temporary, ignore_errors=True)
        return f"{name}: unpacked in {time.monotonic() - started:.0f} s"

    # --- drivers ------------------------------------------------------------------------------------------------------

    def running(self) -> dict[str, int]:
        """Name -> process id of the drivers that have not ended."""
        numbers = {path.stem: int(path.read_text()) for path in sorted(self.work.glob("driver-*.pid"))}
        return {name: number for name, number in numbers.items() if is_alive(number)}

    def start(self, args: argparse.Namespace) -> None:
        if self.running():
            say(f"{', '.join(self.running())}: running already; nothing was started")
            return
        self.take_kernels()
        self.place_runs(args.memory, self.work)
        shutil.rmtree(self.code, ignore_errors=True)
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "results", "benchmarks")
        shutil.copytree(ROOT / "src", self.code / "src", ignore=left_out)
        shutil.copytree(ROOT / "experiments", self.code / "experiments", ignore=left_out)
        environment = self.environment(args.start)
        for number in range(args.start):
            name = f"driver-{time.strftime('%H%M%S')}-{number}"
            with open(self.logs / f"{name}.log", "ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "experiments.evidence.commands", str(self.work), str(args.until)],
                    cwd=self.code,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            (self.work / f"{name}.pid").write_text(str(process.pid))
            process.returncode = 0  # Python would warn that it still runs, which is what it is meant to do
            say(f"{name}: started with {args.until:.0f} s")

    def row_command(self, plan: str, names: Sequence[str], commit: str, drivers: int) -> str:
        """The command that trains and evaluates these runs of a plan."""
        words = [
            *("python", "-m", "experiments.evidence", "run", "--plan", plan, "--results", str(self.results / plan)),
            *("--work", str(self.plan_folder(plan)), "--until-seconds", LONG),
            *["--shared"] * (drivers > 1),
            *(word for name in names for word in ("--only", name)),
            *(["--commit", commit] if commit else []),
        ]
        return shlex.join(words)

    def plan_folder(self, plan: str) -> Path:
        return self.work / "plans" / plan

    def prepare_plan(self, plan: str, memory: Path) -> None:
        """A work folder for the plan, as two plans may have runs of one name; and its results of earlier machines."""
        folder, results = self.plan_folder(plan), self.results / plan
        folder.mkdir(parents=True, exist_ok=True)
        results.mkdir(exist_ok=True)
        if not (folder / "data").exists():
            (folder / "data").symlink_to(self.data)
        self.place_runs(memory, folder)
        for path in sorted(earlier_results(plan).glob("*.json")):
            if not (results / path.name).exists():
                shutil.copyfile(path, results / path.name)

    def add_commands(self, file: Path, memory: Path, commit: str, drivers: int) -> None:
        """Put each line of the file into the queue that drivers take from; those of an earlier file come first."""
        queue = self.work / QUEUE
        queue.mkdir(exist_ok=True)
        lines = [line for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]
        taken = len(list(queue.iterdir()))
        for number, line in enumerate(lines, taken):
            if line.startswith("row "):
                _, plan, *names = line.split()
                self.prepare_plan(plan, memory)
                line = self.row_command(plan, names, commit, drivers)
            (queue / f"{number:03d}.command").write_text(line)
        say(f"{len(lines)} commands added, {taken} before them")

    def place_runs(self, memory: Path, work: Path) -> None:
        """Keep the run folders of `work` in memory if there is room, because every epoch syncs a checkpoint."""
        runs = work / "runs"
        if runs.exists() or not memory.is_dir() or shutil.disk_usage(memory).free < ROOM:
            return
        folder = memory / f"remote-{os.getuid()}-{self.work.name}-{work.name}"
        folder.mkdir(exist_ok=True)
        runs.symlink_to(folder)
        say(f"runs lie in {memory}")

    def environment(self, drivers: int) -> dict[str, str]:
        """Environment of the drivers: caches in the work folder, and CUDA's multi-process service if it works."""
        path = os.pathsep.join([str(self.code / "src"), str(self.code), str(self.packages)])
        variables = {
            "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, drivers))),  # evaluations run side by side
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONUNBUFFERED": "1",
            "SUPANCL_CACHE": str(self.work / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.kernels / "inductor"),
            "TRITON_CACHE_DIR": str(self.kernels / "triton"),
        }
        if drivers < 2 or not shutil.which("nvidia-cuda-mps-control"):
            return variables
        pipes = {
            "CUDA_MPS_PIPE_DIRECTORY": str(Path("/tmp/remote-mps")),  # short, as a socket must be
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
        }
        Path(pipes["CUDA_MPS_PIPE_DIRECTORY"]).mkdir(exist_ok=True)
        shared = {**variables, **pipes}
        try:
            subprocess.run(
                ["nvidia-cuda-mps-control", "-d"],
                env=shared,
                check=False,
                timeout=20,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            subprocess.run(
                [sys.executable, "-c", "import torch; torch.zeros(1).cuda().sum().item()"],
                env=shared,
                check=True,
                timeout=120,
                capture_output=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            say(f"the multi-process service does not work ({error}); the drivers take turns on the GPU")
            return variables
        say("the drivers share the GPU through the multi-process service")
        return shared

    def run_folders(self) -> dict[Path, Path]:
        """Folder of runs -> folder of their results: of commands, then of each plan."""
        plans = {runs: self.results / runs.parent.name for runs in sorted(self.work.glob("plans/*/runs"))}
        return {self.work / "runs": self.results, **plans}

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.running():
            time.sleep(min(2.0, max(0.0, end - time.monotonic())))

    # --- what came out ------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        say(
            f"data: {', '.join(name for name in SETS if self.has(name)) or 'none'}; running: "
            f"{', '.join(self.running()) or 'no driver'}"
        )
        for path in sorted(self.results.rglob("*.json")):
            if (earlier_results(path.parent.name) / path.name).exists():
                continue
            with contextlib.suppress(ValueError, KeyError, TypeError):  # not of a plan
                result = json.loads(path.read_text())
                values_text = ", ".join(
                    f"{key} {result['values'][key]:.2f}" for key in ("knn", "linear", "AP50") if key in result["values"]
                )
                speed = f"{result['images_per_second']:,.0f} images/s, " if result["images_per_second"] else ""
                failures = f"; not measured: {', '.join(result['not_measured'])}" if result["not_measured"] else ""
                say(
                    f"{result['name']}: {result['status']}; {values_text}; {speed}{result['train_seconds']:.0f} s + "
                    f"{result['judge_seconds']:.0f} s{failures}"
                )
        for path in sorted(self.logs.glob("driver-*.log"), key=lambda log: log.stat().st_mtime)[-4:]:
            lines = path.read_text(errors="replace").splitlines()[-8:]
            say("\n".join([f"--- {path.name}", *(line[:300] for line in lines)]))
        for runs, results in self.run_folders().items():
            for path in sorted(runs.glob("*/metrics.jsonl")):
                if not (results / f"{path.parent.name}.json").exists():
                    say(f"{path.parent.name}: {last_row(path)}")

    def collect(self, out: Path, kernels: bool, also: Sequence[str] = ()) -> None:
        """Pack results and logs into few files of limited size, as the machine requires."""
        out.mkdir(parents=True, exist_ok=True)
        for path in (path for pattern in also for path in self.results.rglob(pattern)):
            shutil.copyfile(path, out / path.name)
        pack(out / "results.tar.gz", self.results, (self.results.rglob("*.json")))
        files = [
            path
            for runs in self.run_folders()
            for name in ("metrics.jsonl", "recipe.json", "evidence.json", "detect.json", "evaluate/*.json")
            for path in runs.glob(f"*/{name}")
        ]
        pack(out / "logs.tar.gz", self.work, [*self.logs.glob("*.log"), *files])
        if kernels:
            self.collect_kernels(out)
        for path in sorted(out.iterdir()):
            say(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB")

    def collect_kernels(self, out: Path) -> None:
        archive = self.work / KERNELS
        pack(archive, self.kernels, (path for path in self.kernels.rglob("*") if path.is_file()))
        if archive.stat().st_size > PART * PARTS:
            say(f"{KERNELS}: {archive.stat().st_size / 2**20:.0f} MiB, too much to send; left here")
            return
        with open(archive, "rb") as file:
            for number, chunk in enumerate(iter(lambda: file.read(PART), b"")):
                (out / f"{KERNELS}.{number}").write_bytes(chunk)

    def take_kernels(self) -> None:
        """Unpack kernels of an earlier machine if they were sent; a broken archive is ignored."""
        chunks = sorted(self.raw.glob(f"{KERNELS}.*"))
        if not chunks or any(self.kernels.iterdir()):
            return
        archive = self.work / KERNELS
        with open(archive, "wb") as file:
            for chunk in chunks:
                file.write(chunk.read_bytes())
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(self.kernels, filter="data")
            say(f"kernels of an earlier machine: {sum(1 for _ in self.kernels.rglob('*'))} files")
        except (OSError, EOFError, tarfile.TarError) as error:
            say(f"kernels of an earlier machine could not be read: {error}")


def earlier_results(plan: str) -> Path:
    """The folder of what earlier machines made of a plan."""
    return RESULTS if plan == FIRST_PLAN else RESULTS / plan


def pack(archive: Path, base: Path, paths: Iterable[Path]) -> None:
    """Pack files as they are now: results are complete, logs may end in half a line."""
    with tarfile.open(archive, "w:gz", compresslevel=6) as packed:
        for path in sorted(paths):
            with contextlib.suppress(FileNotFoundError):
                packed.add(path, arcname=str(path.relative_to(base)))


def last_row(path: Path) -> str:
    """The last logged row of a run in training."""
    rows = [line for line in tail(path) if line.endswith("}")]
    for line in reversed(rows):
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            shown = ("epoch", "step", "loss", "images_per_second")
            return ", ".join(f"{key} {row[key]}" for key in shown if key in row)
    return "nothing logged yet"


def tail(path: Path, size: int = 4096) -> Iterator[str]:
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        yield from file.read().decode(errors="replace").splitlines()


def is_alive(number: int) -> bool:
    """Whether the process runs; a zombie does not."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(number, os.WNOHANG)
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
