"""Profiles to start with, one for each drafter. Nothing in them was measured."""

from collections.abc import Sequence
from dataclasses import replace

from echo_sched.scheduler.depths import Checkpoint, DepthStats
from echo_sched.scheduler.profile import ANY_LOAD, Identity, Profile

# Starting values, chosen by thought and not by measurement; run calibrate to replace them. Thresholds are for depths
# 1 to 8; deeper ones are never read.
#
# ngram: its smoothed probabilities give a single match of a short suffix 0.3 to 0.5 and a long repeated match about
# 0.9, so the path probability of a right continuation falls slowly with depth and that of a chance match fast.
NGRAM_TARGET_DEPTH = 3
NGRAM_TYPICAL_DEPTH = 2.0
NGRAM_THRESHOLDS = (0.40, 0.28, 0.20, 0.16, 0.13, 0.11, 0.09, 0.08)
# eagle3: a trained head's probabilities are roughly what it is right by. About half of its first tokens are right, a
# little less of each further one, so the best path's probability halves from depth to depth on ordinary text.
EAGLE3_TARGET_DEPTH = 4
EAGLE3_TYPICAL_DEPTH = 2.0
EAGLE3_THRESHOLDS = (0.20, 0.12, 0.08, 0.05, 0.04, 0.03, 0.02, 0.015)
# lm: a whole model knows well how sure it is. About two thirds of its first tokens are a larger relative's too, and
# nearly as many of each further one, since it reads every token. A level costs a forward of that model, so its gates
# ask for more than a head's do.
LM_TARGET_DEPTH = 4
LM_TYPICAL_DEPTH = 2.5
LM_THRESHOLDS = (0.25, 0.17, 0.12, 0.09, 0.07, 0.05, 0.04, 0.03)


def _starting_values(drafter: str, target_depth: int, typical_depth: float, thresholds: Sequence[float]) -> Profile:
    """The gate reads depth 1 and the target depth."""
    depths = tuple(
        DepthStats(depth, 0, None, None, None, None, None, threshold)
        for depth, threshold in enumerate(thresholds, start=1)
    )
    return Profile(
        model=Identity("any", None),
        drafter=Identity(drafter, None),
        target_depth=target_depth,
        typical_depth=typical_depth,
        loads=ANY_LOAD,
        checkpoints=tuple(
            Checkpoint(depth, (thresholds[depth - 1],), None, None, None, 0) for depth in (1, target_depth)
        ),
        no_checkpoint_reason="built-in starting values, nothing was measured",
        depths=depths,
        acceptance=(),
        cost=None,
        provenance={"source": "built in"},
    )


BUILT_IN_PROFILES = {
    "ngram": _starting_values("ngram", NGRAM_TARGET_DEPTH, NGRAM_TYPICAL_DEPTH, NGRAM_THRESHOLDS),
    "eagle3": _starting_values("eagle3", EAGLE3_TARGET_DEPTH, EAGLE3_TYPICAL_DEPTH, EAGLE3_THRESHOLDS),
    "lm": _starting_values("lm", LM_TARGET_DEPTH, LM_TYPICAL_DEPTH, LM_THRESHOLDS),
}


def built_in_profile(drafter: str) -> Profile:
    """What to start with, by the drafter's name. A merge (`eagle3+ngram`) starts with the values of its first part."""
    profile = BUILT_IN_PROFILES[drafter.split("+")[0]]
    return replace(profile, drafter=Identity(drafter, None))
