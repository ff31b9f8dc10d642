"""Several drivers in one folder: each run is made once, whoever dies; and data that arrive late."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.evidence.drive import Driver, RunLocks
from experiments.evidence.further_plans import PLANS
from experiments.evidence.judge import TRAINING_FILE, inside
from experiments.evidence.plan import Setting, Task, kind_of, rehearsal_task
from experiments.evidence.plans import CIFAR_FINAL, accuracy, final, pilots, sweep
from experiments.evidence.results import read_results

PLAN = PLANS["digits"]()
ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "src")])


def started(place: Path, *more: str) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "experiments.evidence",
        "run",
        "--plan",
        "digits",
        "--results",
        str(place / "results"),
        "--work",
        str(place / "work"),
        *more,
    ]
    return subprocess.Popen(
        words,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
    )


def test_a_claim_is_one_drivers_until_it_lets_go(tmp_path: Path) -> None:
    one, other = RunLocks(tmp_path), RunLocks(tmp_path)
    assert one.take("run a", kind="supsiam", compiles=True)
    assert one.take("run a")  # it has it
    assert not other.take("run a")
    assert other.others() == [{"pid": os.getpid(), "kind": "supsiam", "compiles": True}]
    assert one.others() == []
    one.release("run a")
    assert other.others() == []
    assert other.take("run a")
    other.leave()
    assert one.take("run a")
    one.leave()


def test_a_claim_dies_with_its_process_unless_a_judge_has_inherited_it(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys; from experiments.evidence.drive import RunLocks; from pathlib import Path\n"
        "locks = RunLocks(Path(sys.argv[1])); locks.take('a'); locks.take('b')\n"
        "subprocess.Popen(['sleep', '1.5'], pass_fds=(locks.own_locks['b'],), stdout=subprocess.DEVNULL)\n"
        "print('ready', flush=True); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        text=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PATHS},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.wait() == -signal.SIGKILL
        locks = RunLocks(tmp_path)
        assert locks.take("a")
        assert not locks.take("b")
        end = time.monotonic() + 10
        while not locks.take("b") and time.monotonic() < end:
            time.sleep(0.1)
        assert "b" in locks.own_locks
        locks.leave()


def test_two_drivers_share_the_plan_and_one_takes_over_when_the_other_is_killed(tmp_path: Path) -> None:
    wanted = ("--only", "pilot", "--only", "final")
    first = started(tmp_path, *wanted)
    assert first.stdout is not None
    assert first.stdout.readline().startswith("pilot-supsiam-0: about ")
    others = [started(tmp_path, *wanted) for _ in range(2)]
    first.kill()  # in the middle of its first run
    first.communicate()
    told = [process.communicate(timeout=120)[0] for process in others]
    assert [process.returncode for process in others] == [0, 0], told
    names = sorted(step.name for step in PLAN.steps if step.stage in ("pilot", "final"))
    assert sorted(read_results(tmp_path / "results", PLAN)) == names
    made = [
        line.rpartition(": ")[2].split(", ") for text in told for line in text.splitlines() if "runs were made" in line
    ]
    assert sorted(made[0] + made[1]) == names  # each once
    assert min(map(len, made)) >= 1, told


def test_a_driver_stays_with_its_kind_and_leaves_to_others_what_they_compile(tmp_path: Path) -> None:
    grid = dict.fromkeys(("supsiam", "simsiam"), (Setting(0.1, 5e-4), Setting(0.05, 5e-4)))
    plan = replace(PLAN, steps=[step for method in grid for step in pilots(method, grid[method], epochs=1)])
    one, other = (Driver(plan, tmp_path / "results", tmp_path, tell=lambda text: None) for _ in range(2))

    def takes(driver: Driver) -> str:
        step = driver.next_step()
        assert step is not None
        driver.tried.add(step.name)
        driver.kinds.append(kind_of(step))
        return step.name

    assert [takes(one), takes(other), takes(other), takes(one)] == [
        "pilot-supsiam-0",
        "pilot-simsiam-0",
        "pilot-simsiam-1",
        "pilot-supsiam-1",
    ]
    assert other.compiled_by_others() == {"supsiam"}
    with pytest.MonkeyPatch.context() as patch:
        now = time.time()
        patch.setattr("experiments.evidence.drive.time.time", lambda: now + 300)
        assert other.compiled_by_others() == set()
    assert other.next_step() is None
    assert other.worth_waiting()  # the other one may be killed
    one.locks.leave()
    assert takes(other) == "pilot-supsiam-0"
    other.locks.leave()


def test_while_a_pilot_is_judged_nothing_far_down_the_plan_is_begun(tmp_path: Path) -> None:
    """Its result may free the runs that come next, and judging it takes seconds."""
    one, other = pilots("supsiam", (Setting(0.1, 5e-4), Setting(0.2, 5e-4)), epochs=1)
    seeds, last = [final("supsiam", seed) for seed in range(4)], pilots("simsiam", (Setting(0.1, 5e-4),), epochs=1)[0]
    driver = Driver(replace(PLAN, steps=[one, *seeds, last]), tmp_path / "results", tmp_path)
    driver.tried.add(one.name)
    driver.judging = one, None
    assert driver.next_step() is None
    driver.plan = replace(driver.plan, steps=[one, other, *seeds, last])
    assert driver.next_step() == other
    driver.judging = None
    assert driver.next_step() == other  # still its own
    driver.tried.add(other.name)
    assert driver.next_step() == last
    driver.locks.leave()


def test_what_is_one_run_under_two_names_is_locked_once(tmp_path: Path) -> None:
    steps = [replace(step, follows=None) for step in (final("simsiam", 0), sweep(0)[-1])]
    same = {"optimizer.lr": 0.1, "optimizer.weight_decay": 5e-4}
    steps = [replace(step, settings={**step.settings, **same}) for step in steps]
    one, other = (Driver(replace(PLAN, steps=listed), tmp_path / "results", tmp_path) for listed in (steps, steps[1:]))
    assert one.next_step() == steps[0]
    assert other.next_step() is None
    one.locks.leave()
    assert other.next_step() == steps[1]
    other.locks.leave()


# --- data that arrive late --------------------------------------------------------------------------------------------


def test_a_task_says_which_data_it_lacks(tmp_path: Path) -> None:
    with inside(tmp_path):
        lacking = [task.lacks() for task in CIFAR_FINAL]
        assert lacking == [[], [], [], [], ["data/cifar10.npz"], ["pets"], ["omniglot", "traffic-signs"]]
        assert [rehearsal_task(task).lacks() for task in CIFAR_FINAL] == lacking
        (tmp_path / "data" / "pets" / "trainval" / "Abyssinian").mkdir(parents=True)
        (tmp_path / "data" / "gtsrb" / "test" / "00000").mkdir(parents=True)
        (tmp_path / "data" / "cifar10.npz").touch()
        assert [task.lacks() for task in CIFAR_FINAL[4:]] == [[], [], ["omniglot"]]
    assert all(task.lacks() == [] for task in PLAN.tasks["final"])


@pytest.fixture
def late():
    """A plan whose first run needs data that are not there, and whose second one does not."""
    first, separate_simsiam = replace(PLAN.steps[0], stage="final"), PLAN.steps[1]
    tasks = {
        "final": [PLAN.tasks["final"][0], Task(("linear", "--data", "late.npz"), accuracy("crossed"))],
        "pilot": PLAN.tasks["pilot"][:1],
    }
    return replace(PLAN, steps=[first, separate_simsiam], tasks=tasks, picture=())


def bring(place: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (80, 8, 8), dtype=np.uint8), np.arange(80) % 4
    np.savez(place, train_images=images, train_labels=labels, test_images=images[:20], test_labels=labels[:20])


def test_a_run_is_trained_before_its_data_are_there_and_judged_when_they_are(tmp_path: Path, late) -> None:
    lines: list[str] = []

    def tell(text: str) -> None:
        lines.append(text)
        if text.startswith("pilot-supsiam-1: finished"):
            bring(tmp_path / "work" / "late.npz")

    driver = Driver(late, tmp_path / "results", tmp_path / "work", until=600, tell=tell)
    assert driver.run() == ["pilot-supsiam-0", "pilot-supsiam-1"]
    results = read_results(tmp_path / "results")
    assert set(results["pilot-supsiam-0"]["values"]) == {"linear", "crossed"}
    ends = [line.partition(":")[0] for line in lines if ": finished; " in line]
    assert ends == ["pilot-supsiam-1", "pilot-supsiam-0"]


def test_without_its_data_a_run_is_left_trained_and_the_next_driver_judges_it(tmp_path: Path, late) -> None:
    lines: list[str] = []
    assert len(Driver(late, tmp_path / "results", tmp_path / "work", tell=lines.append).run()) == 2
    assert lines[-1] == (
        "pilot-supsiam-0: trained but not evaluated, missing: late.npz; start again on this machine when it is there"
    )
    assert sorted(read_results(tmp_path / "results")) == ["pilot-supsiam-1"]
    noted = (tmp_path / "work" / "runs" / "pilot-supsiam-0" / TRAINING_FILE).stat().st_mtime_ns
    bring(tmp_path / "work" / "late.npz")
    again = Driver(late, tmp_path / "results", tmp_path / "work", until=45, tell=lines.append)  # training takes longer
    assert again.run() == ["pilot-supsiam-0"]
    assert (tmp_path / "work" / "runs" / "pilot-supsiam-0" / TRAINING_FILE).stat().st_mtime_ns == noted
    assert "crossed" in read_results(tmp_path / "results")["pilot-supsiam-0"]["values"]
