import gc
import hashlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.forked import forking

# the cores are shared between test processes, and bit-exactness is promised at equal thread counts
torch.set_num_threads(1)

# nothing is fetched: read when the library is imported, so it is set before any test
os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"})


# a power cut is no concern of the tests; those of full disks and of folders that cannot be synced put their own here
os.fsync = lambda descriptor: None


def pytest_collection_finish():
    """Torch and 5,000 collected tests are not garbage: the collector need not walk them again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # or some libraries complain at the end of what they take for leaks


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def cache_root(caches, monkeypatch, request):
    """No test may read, fill or evict the packed cache of whoever runs the tests, nor that of another test."""
    root = caches / hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("SUPANCL_CACHE", str(root))
    return root


@pytest.fixture(scope="session")
def forks():
    """What to add to the environment of a process so that the commands it starts need not import torch again."""
    with TemporaryDirectory(prefix="forks-") as folder, forking(Path(folder)) as environment:  # sockets: short paths
        yield environment


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a test may be skipped for want of a GPU and for nothing else: a missing extra must fail, not hide."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.endswith("no GPU"):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI: {reason}"
    return report
