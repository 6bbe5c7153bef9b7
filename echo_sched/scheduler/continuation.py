"""What the children of a node keep of its chance, by depth: what a level that is not drafted yet may be hoped to bring.

    share(depth) = (FIRST * calibrated share + likeliest children's chances) / (FIRST + their parents' chances)

Both sums are over the levels that were drafted, and fade, so that where nothing is drafted calibration's word returns:
what nobody hopes for would never be tried again. Knows no price and no clock.
"""

import numpy as np

from echo_sched.scheduler.plan import AllocationReport
from echo_sched.scheduler.profile import Profile
from echo_sched.tree import FloatArray

FIRST = 8.0  # parents' chances that calibration's word weighs as much as
FADING = 0.01  # per step that drafts


class Continuation:
    """The shares of one engine's traffic. Where nobody calibrated, a node's whole chance is hoped for."""

    def __init__(self, profile: Profile, max_depth: int) -> None:
        self._calibrated = _calibrated(profile, max_depth)
        self._parents, self._children = np.zeros(max_depth), np.zeros(max_depth)

    @property
    def shares(self) -> FloatArray:
        """[max_depth] share of a node's chance that its likeliest child at each depth keeps."""
        shares: FloatArray = (FIRST * self._calibrated + self._children) / (FIRST + self._parents)
        return shares

    def observe(self, report: AllocationReport) -> None:
        """The levels that a step has drafted, whatever of them was bought."""
        self._parents *= 1.0 - FADING
        self._children *= 1.0 - FADING
        self._parents[: report.num_levels] += report.parents
        self._children[: report.num_levels] += report.children


def _calibrated(profile: Profile, max_depth: int) -> FloatArray:
    """[max_depth] how likely the accepted path goes on to each depth from the one above; 1 where nobody measured."""
    reached = {row.depth: row.acceptance for row in profile.depths}
    shares = np.ones(max_depth)
    for depth in range(1, max_depth + 1):
        here, above = reached.get(depth), reached.get(depth - 1, 1.0 if depth == 1 else None)
        if here is not None and above:
            shares[depth - 1] = min(1.0, here / above)
    return shares
