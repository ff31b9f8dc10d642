import os

import pytest
import torch

# the cores are shared between test processes, and bit-exactness is promised at equal thread counts
torch.set_num_threads(1)


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
