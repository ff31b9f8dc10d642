"""One rule for the numbers that a network computes in."""

import pytest
import torch

from supancl.distributed.ranks import auto_precision, autocast_for, has_bf16

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_products_are_of_the_precision_asked_for(precision, dtype):
    with autocast_for(CPU, precision):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize("supported", [True, False])
def test_auto_is_bf16_only_on_a_gpu_that_has_it(supported, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert (auto_precision(CUDA), auto_precision(CPU)) == ("bf16" if supported else "fp32", "fp32")
    assert (has_bf16(CUDA), has_bf16(CPU)) == (supported, True)
