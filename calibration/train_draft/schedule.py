"""How long and how hard a head is trained: the recipe, the learning rate along the way, and when more is in vain."""

import math
from dataclasses import dataclass

from calibration.train_draft.state import TrainingState

WARM_UP = 0.03  # share of the budget in which the learning rate rises
LOWEST_RATE = 0.02  # of the peak: where the cosine ends
STOP_GAIN, STOP_PASSES = 0.002, 2  # less than this in so many passes ends the run


@dataclass(frozen=True)
class Recipe:
    """How long and how hard to train."""

    epochs: int
    max_minutes: float | None
    batch_tokens: int
    learning_rate: float
    unroll: int
    eval_every: int | None  # steps; None: after each pass only
    checkpoint_every: int  # steps
    seed: int
    compute_dtype: str  # auto, float32 or bfloat16


def rate(progress: float) -> float:
    """Learning rate as a share of its peak: a linear rise, then half a cosine. progress: in [0, 1]."""
    if progress < WARM_UP:
        return (progress + 0.02 * WARM_UP) / (1.02 * WARM_UP)
    fall = (progress - WARM_UP) / (1.0 - WARM_UP)
    return LOWEST_RATE + (1.0 - LOWEST_RATE) * 0.5 * (1.0 + math.cos(math.pi * min(fall, 1.0)))


def has_stalled(state: TrainingState) -> bool:
    """Whether the last passes gained too little held-out first-step accuracy to go on."""
    firsts = [row["accuracy"][0] for row in state.scores(pass_ends=True)]
    return len(firsts) > STOP_PASSES and firsts[-1] - firsts[-1 - STOP_PASSES] < STOP_GAIN
