"""How long something takes and how much it holds, for scaling.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(work: Callable[[], object], device: torch.device, repeats: int = 15, calls: int = 4) -> float:
    """Median time of one call; `calls` of them between two looks at the clock."""
    for _ in range(3):
        work()
    found = []
    for _ in range(repeats):
        wait(device)
        since = time.perf_counter()
        for _ in range(calls):
            work()
        wait(device)
        found.append((time.perf_counter() - since) / calls * 1e3)
    return statistics.median(found)


def replayed(work: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """On a GPU the work as a training step has it: recorded once, then replayed without the host."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # what it reads is still being written there
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    wait(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def tensor_bytes(value: object) -> int:
    """Bytes of every tensor in nested containers."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(tensor_bytes(item) for item in value.values())
    return sum(tensor_bytes(item) for item in value) if isinstance(value, (list, tuple)) else 0
