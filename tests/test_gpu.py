"""The engine on an accelerator. These need one that torch can use, and skip elsewhere."""

import pytest
import torch

from echo_sched.engine.memory import resolve_device
from tests.loops import (
    EOS_ID,
    assert_equal_to_reference,
    mixed_requests,
    probe_tiny,
    processed_requests,
    scripted,
    tiny_loop,
    tiny_target,
)
from tests.test_exactness import MAX_DEPTH
from tests.tiny_models import FAMILIES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", FAMILIES)
def test_float64_tokens_equal_plain_decoding(family: str) -> None:
    target = tiny_target(family, device=resolve_device("auto"))
    assert target.facts.eos_ids == {EOS_ID} and target.device.type != "cpu"
    for make in (mixed_requests, processed_requests):
        loop = tiny_loop(target, scripted(family, 8, make=make), max_depth=MAX_DEPTH)
        assert_equal_to_reference(loop, family, 8, make)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_passes(dtype: torch.dtype) -> None:
    probe_tiny("llama", dtype=dtype, device=resolve_device("auto"))
