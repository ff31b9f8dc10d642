"""A signal ends a run after it has saved; one that is sent twice is one, an impatient second one is not."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from queue import Queue

import pytest

from supancl.data.threads import WaitStopped, waiting_for_images
from supancl.training import loop as signals


def test_a_signal_that_comes_twice_at_once_is_noted_and_a_later_one_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two quick presses of Ctrl-C are 0.4 s apart; torchrun and sweeps forward a signal within two seconds."""
    lines: list[str] = []
    now, before = [100.0], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    try:
        with signals.record_signals(lines.append) as received:
            os.kill(os.getpid(), signal.SIGINT)
            now[0] += 1.9
            os.kill(os.getpid(), signal.SIGTERM)  # as torchrun forwards it
            assert received == [signal.SIGINT, signal.SIGTERM]
            now[0] += 0.2
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_sighup_stops_too_unless_nohup_has_it_ignored() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with signals.record_signals(lambda line: None) as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received == [signal.SIGHUP]
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with signals.record_signals(lambda line: None) as received:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            assert received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_signal_is_acknowledged_at_once() -> None:
    lines: Queue[str] = Queue()
    with signals.record_signals(lines.put):
        os.kill(os.getpid(), signal.SIGTERM)
        assert "SIGTERM" in lines.get(timeout=60)  # before the step has ended
        os.kill(os.getpid(), signal.SIGTERM)
    assert lines.empty()


@pytest.mark.parametrize("stops_waits", [True, False])
def test_a_signal_ends_a_wait_for_images_unless_there_are_several_ranks(stops_waits: bool) -> None:
    with signals.record_signals(lambda line: None, stops_waits) as received, waiting_for_images():
        with pytest.raises(WaitStopped) if stops_waits else nullcontext():
            os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
