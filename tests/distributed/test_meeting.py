"""Ranks that meet: never with the keys of ranks before them, and not for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from supancl.distributed.heartbeat import Heartbeat, Silence
from torch.distributed import HashStore

from supancl.distributed import Ranks, heartbeat, meeting
from supancl.errors import BadInput

SOON, NOW = timedelta(seconds=60), timedelta(seconds=-1)


@pytest.fixture(autouse=True)
def address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(meeting, "POLL_SECONDS", 0.001)


def test_each_start_of_all_ranks_meets_under_a_prefix_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    store, prefixes = HashStore(), []
    for restarts in ("0", "1", "1"):  # the last: torchrun does not count a change of machines
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        with ThreadPoolExecutor(3) as threads:
            found = set(threads.map(lambda rank: meeting.meet(Ranks(3, rank, rank), store, SOON), range(3)))
        assert len(found) == 1
        assert f"/{restarts}-" in min(found)
        prefixes += found
    assert len(set(prefixes)) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(rank: int) -> None:
    store = HashStore()
    with ThreadPoolExecutor(3) as threads:  # an earlier meeting, whose keys are still there
        list(threads.map(lambda number: meeting.meet(Ranks(3, number, number), store, SOON), range(3)))
    with pytest.raises(BadInput):
        meeting.meet(Ranks(3, rank, rank), store, NOW)


def test_a_rank_is_lost_after_minutes_without_a_heartbeat_and_not_while_it_sends_them() -> None:
    silence = Silence(Ranks(3, 1, 1))
    for beat in range(1000):
        silence.hear({0: str(beat).encode(), 2: b"7"})
        silence.pass_time(1.0)
        if beat < heartbeat.SILENCE_LIMIT - 1:
            assert silence.lost_ranks() == []
    assert silence.lost_ranks() == [2]
    silence.hear({2: b"8"})
    assert silence.lost_ranks() == []


def test_a_rank_that_has_finished_and_one_that_was_stopped_itself_miss_nobody() -> None:
    silence = Silence(Ranks(2, 0, 0))
    for _ in range(1000):
        silence.hear({1: heartbeat.LEFT})
        silence.pass_time(1.0)
    silence.pass_time(1e6)  # as seen after SIGSTOP and SIGCONT
    assert silence.lost_ranks() == []


def test_a_rank_at_work_finishes_it_before_it_ends_for_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[bool] = []
    at_work = [True]
    monkeypatch.setattr(heartbeat, "SILENCE_LIMIT", 3.0)
    pulse = Heartbeat(Ranks(2, 0, 0), HashStore(), lambda ranks, silence: ends.append(at_work[0]))
    ticks = iter(range(1000))
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: float(next(ticks)))
    checks = iter([False] * 30)

    def work_and_check(_seconds: float) -> bool:
        count = next(checks, None)
        if count is None:
            if not at_work[0]:
                return True
            at_work[0] = False
            work.__exit__(None, None, None)
        return False

    monkeypatch.setattr(pulse._ended, "wait", work_and_check)
    work = pulse.work()
    work.__enter__()
    pulse._watch()
    assert ends == [False]
