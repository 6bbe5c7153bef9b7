"""What every drafter is: it proposes children for the nodes of draft trees, and is told what was committed.

A drafter decides nothing about budget, gates or acceptance. It may keep state per request from `begin` to `release`.
It must not assume that drafting and verifying alternate: `extend` may be called after many steps without drafting
and brings the drafter up to date with everything committed since.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from echo_sched.tree import DraftTree, Frontier, Offers
from echo_sched.types import Request


class Drafter(Protocol):
    """Proposes children for frontier nodes."""

    name: str
    fingerprint: str | None  # identity of its weights, if it has any
    aux_layers: tuple[int, ...]  # hidden states of the target it learns from; () for none, and no `observe`

    def begin(self, request: Request) -> None:
        """The request got a slot; its prompt is known."""

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None:
        """What the target's forward computed for tokens that are now committed: (request, how many), in order.

        features: [sum of counts, len(aux_layers) * hidden], the hidden states side by side. Every committed token of
        a request comes by exactly once, in order, before the `extend` that needs it.
        """

    def extend(self, requests: Sequence[Request]) -> None:
        """Catch up with each request's committed tokens (`prompt_ids ++ output_ids`)."""

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        """The best `max_children` children of every frontier node, best first, siblings distinct.

        `frontier.request` indexes `requests` and `trees`. A node may get fewer children, or none.
        """
        ...

    def release(self, request: Request) -> None:
        """The request is over; forget it."""
