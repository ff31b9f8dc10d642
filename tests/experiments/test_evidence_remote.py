"""A remote machine: data arrive in parts, drivers outlive the command that starts them, and few files come back."""

import json
import shlex
import tarfile
import time
from pathlib import Path

import pytest

from experiments.evidence import remote
from experiments.evidence.__main__ import parser
from experiments.evidence.further_plans import named_plan
from experiments.evidence.remote import KERNELS, Remote, is_alive, main
from experiments.evidence.results import read_results

UNPACK = """
import sys, time
from pathlib import Path
out, name = Path(sys.argv[1]), sys.argv[2]
if name == "broken":
    sys.exit("no such thing")
(out / name).mkdir(parents=True)
(out / name / "whole").write_text("".join(p.read_text() for p in sorted(Path(__file__).parent.glob(name + "-*"))))
"""


@pytest.fixture
def sent(tmp_path: Path, monkeypatch) -> Path:
    """Files as they were sent in two calls: of `two` one in each."""
    monkeypatch.setattr(
        remote,
        "SETS",
        {"one": (("one-0",), "one"), "two": (("two-0", "two-1"), "two"), "broken": (("one-0",), "broken")},
    )
    for folder, files in (("gpu1", {"unpack.py": UNPACK, "one-0": "1", "two-0": "2"}), ("gpu2", {"two-1": "3"})):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    return tmp_path


def test_data_are_unpacked_once_all_their_files_are_there(sent: Path, capsys) -> None:
    work = sent / "work"
    assert main([str(sent / "gpu1"), "--work", str(work)]) == 0
    assert [path.name for path in (work / "data").iterdir()] == ["one"]
    assert "broken: could not be unpacked: no such thing" in capsys.readouterr().out
    before = (work / "data" / "one" / "whole").stat().st_mtime_ns
    assert main([str(sent / "gpu2"), "--work", str(work)]) == 0
    assert (work / "data" / "two" / "whole").read_text() == "23"
    assert (work / "data" / "one" / "whole").stat().st_mtime_ns == before
    assert not list(work.glob("unpacking-one")) + list(work.glob("unpacking-two"))


def test_a_folder_that_was_not_sent_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="gpu9"):
        main([str(tmp_path / "gpu9"), "--work", str(tmp_path / "work")])


def test_drivers_outlive_the_command_and_are_not_started_twice(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    work, out, queue = tmp_path / "work", tmp_path / "out", tmp_path / "queue.txt"
    queue.write_text("row digits pilot-supsiam-0\n")
    flags = ["--work", str(work), "--memory", str(tmp_path / "none"), "--commit", "abc1234"]
    words = [*flags, "--start", "1", "--until", "600", "--queue", str(queue)]
    assert main(words) == 0
    assert main([*flags, "--start", "1"]) == 0
    assert "running already; nothing was started" in capsys.readouterr().out
    (pid,) = work.glob("driver-*.pid")
    assert is_alive(int(pid.read_text()))
    assert main(["--work", str(work), "--wait", "300", "--collect", str(out)]) == 0
    assert not is_alive(int(pid.read_text()))
    shown = capsys.readouterr().out
    assert "pilot-supsiam-0: finished" in shown
    assert "running: no driver" in shown
    with tarfile.open(out / "results.tar.gz") as archive:
        found = json.load(archive.extractfile("digits/pilot-supsiam-0.json"))
    assert (found["commit"], found["plan"]) == ("abc1234", "digits")
    assert str(tmp_path) not in json.dumps(found)
    with tarfile.open(out / "logs.tar.gz") as archive:
        assert "plans/digits/runs/pilot-supsiam-0/metrics.jsonl" in archive.getnames()


def test_kernels_travel_in_parts_and_a_broken_archive_does_no_harm(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(remote, "PART", 100)
    monkeypatch.setattr(remote, "PARTS", 1000)
    first, separate_simsiam, third = (Remote(tmp_path / name) for name in ("first", "second", "third"))
    (first.kernels / "triton").mkdir()
    (first.kernels / "triton" / "k.cubin").write_bytes(bytes(range(256)) * 4)
    first.collect(tmp_path / "out", kernels=True)
    parts = list((tmp_path / "out").glob(f"{KERNELS}.*"))
    assert len(parts) > 1
    separate_simsiam.take(tmp_path / "out")
    separate_simsiam.take_kernels()
    assert (separate_simsiam.kernels / "triton" / "k.cubin").read_bytes() == bytes(range(256)) * 4
    parts[0].write_bytes(b"nothing")
    third.take(tmp_path / "out")
    third.take_kernels()
    assert "could not be read" in capsys.readouterr().out


def test_waiting_ends_with_the_last_driver(tmp_path: Path) -> None:
    work = Remote(tmp_path)
    (tmp_path / "driver-0.pid").write_text("999999999")
    since = time.monotonic()
    work.wait(60)
    assert time.monotonic() - since < 5


def test_runs_lie_in_memory_where_there_is_room(tmp_path: Path, monkeypatch) -> None:
    memory, small, large = tmp_path / "memory", Remote(tmp_path / "small"), Remote(tmp_path / "large")
    memory.mkdir()
    monkeypatch.setattr(remote, "ROOM", 2**70)
    small.place_runs(memory, small.work)
    assert not (small.work / "runs").exists()
    monkeypatch.setattr(remote, "ROOM", 0)
    large.place_runs(memory, large.work)
    (large.work / "runs" / "one").mkdir()
    assert len(list(memory.glob("*/one"))) == 1
    large.place_runs(memory, large.work)  # a second start finds them where they are
    assert (large.work / "runs" / "one").is_dir()


def test_drivers_share_a_queue_of_commands_that_can_be_added_to(sent: Path, capsys) -> None:
    work, out, file = sent / "work", sent / "out", sent / "commands.txt"
    say = "python -c 'import sys, time; time.sleep({}); open(sys.argv[1], \"x\").write(sys.argv[2])'"
    quick = say.replace("{}", "0")
    file.write_text(
        f"# a remark\n{say.replace('{}', '2')} {{results}}/slow.json {{data}}\n"
        f"python -c 'raise SystemExit(3)'\n{quick} {{results}}/after.npz 1\n"
    )
    flags = ["--work", str(work), "--memory", str(sent / "none")]
    assert main([str(sent / "gpu1"), *flags, "--start", "2", "--until", "60", "--queue", str(file)]) == 0
    assert (work / "data" / "one").exists()  # before the first command, which may need it
    file.write_text(f"{quick} {{results}}/added.json 2\n")
    assert main([*flags, "--queue", str(file), "--wait", "60", "--collect", str(out), "--also", "*.npz"]) == 0
    said = capsys.readouterr().out
    assert "001: exit 3" in said
    assert sorted(path.name for path in (work / "results").iterdir()) == ["added.json", "after.npz", "slow.json"]
    assert (work / "results" / "slow.json").read_text() == str(work / "data")
    assert (out / "after.npz").read_text() == "1"
    with tarfile.open(out / "results.tar.gz") as packed:
        assert sorted(packed.getnames()) == ["added.json", "slow.json"]


def test_runs_of_two_plans_have_their_own_folders_and_what_earlier_machines_made(tmp_path: Path, capsys) -> None:
    work, queue = Remote(tmp_path / "work"), tmp_path / "queue.txt"
    queue.write_text("row imagenet tuned-byol-1 tuned-byol-2\nrow cifar10 final-byol-0\nrow cifar100 alpha-1-2\n")
    work.add_commands(queue, tmp_path / "none", "abc1234", drivers=3)
    commands = [path.read_text() for path in sorted((work.work / "queue").iterdir())]
    assert "--plan imagenet" in commands[0]
    assert "--only tuned-byol-1 --only tuned-byol-2 --commit abc1234" in commands[0]
    for plan, command in zip(("imagenet", "cifar10", "cifar100"), commands, strict=True):
        args = parser().parse_args(shlex.split(command)[3:])
        assert (args.what, args.results, args.work) == ("run", work.results / plan, work.work / "plans" / plan)
        assert (args.work / "data").resolve() == work.data
        assert args.shared
        assert read_results(args.results, named_plan(plan))  # of this plan alone, or it would be refused
    assert "--shared" not in work.row_command("imagenet", ["tuned-byol-1"], "", drivers=1)
    training = work.plan_folder("cifar10") / "runs" / "final-byol-0"  # photographs have a result of this name
    (work.results / "cifar10" / "final-byol-0.json").unlink(missing_ok=True)
    training.mkdir(parents=True)
    (training / "metrics.jsonl").write_text('{"epoch": 3, "step": 9}\n')
    capsys.readouterr()
    work.tell()
    shown = capsys.readouterr().out
    assert "final-byol-0: epoch 3, step 9" in shown
    assert "finished" not in shown  # nothing was made on this machine
