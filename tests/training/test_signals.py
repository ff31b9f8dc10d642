"""A signal ends a run after it has saved; one that is sent twice is one, an impatient second one is not."""

from __future__ import annotations

import os
import signal

import pytest

from supancl.training import signals


def test_a_signal_that_comes_twice_at_once_is_noted_and_a_later_one_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, before = [100.0], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    try:
        with signals.record_signals() as received:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)  # as torchrun passes it on
            assert received == [signal.SIGINT, signal.SIGTERM]
            now[0] += signals.SAME_SIGNAL_SECONDS + 1
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
