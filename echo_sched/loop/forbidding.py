"""Keeps out of the draft trees what requests' grammars forbid: the target would not emit it, so nobody pays for it."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from echo_sched.engine.grammar import Grammar, Scout
from echo_sched.tree import DraftTree, Offers


class DraftFilter:
    """Of one step: it takes the grammars of the decoding requests (None: no grammar), then offers, level by level."""

    def __init__(self, grammars: Sequence[Grammar | None]) -> None:
        self._grammars = {index: grammar for index, grammar in enumerate(grammars) if grammar is not None}
        self._scouts: dict[int, Scout] = {}  # a copy costs something: made for requests that are offered something
        self.num_forbidden = 0

    def __call__(self, offers: Offers, trees: Sequence[DraftTree]) -> Offers:
        """The offers that may follow their parents, in the same order."""
        if not self._grammars:
            return offers
        allowed = np.ones(offers.size, np.bool_)
        for (index, parent), rows in self._families(offers).items():
            tokens = offers.token[rows].tolist()
            allowed[rows] = self._scout(index).allows(trees[index].path(parent), tokens)
        self.num_forbidden += offers.size - int(np.count_nonzero(allowed))
        return offers.take(allowed)

    def _families(self, offers: Offers) -> dict[tuple[int, int], list[int]]:
        """(request, parent) -> rows of its children, for requests with a grammar."""
        families: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row, (index, parent) in enumerate(zip(offers.request.tolist(), offers.parent.tolist(), strict=True)):
            if index in self._grammars:
                families[index, parent].append(row)
        return families

    def _scout(self, index: int) -> Scout:
        if index not in self._scouts:
            self._scouts[index] = self._grammars[index].scout()
        return self._scouts[index]
