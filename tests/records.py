"""Step records of which a test says only what it is about."""

from typing import Any

from echo_sched.types import StepRecord

NOTHING: dict[str, Any] = {
    "step": 0,
    "num_decoding": 0,
    "num_prompt_tokens": 0,
    "k_max": 0,
    "num_offered": 0,
    "num_forbidden": 0,
    "num_levels": 0,
    "num_dropped": 0,
    "num_verified": 0,
    "num_accepted": 0,
    "num_emitted": 0,
    "truncated": {},
    "deepened": {},
    "num_widened": 0,
    "num_transferred": 0,
    "seconds": {},
}


def step_record(**said: Any) -> StepRecord:
    return StepRecord(**(NOTHING | said))
