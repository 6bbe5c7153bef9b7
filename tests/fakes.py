"""A drafter that knows the answer: it proposes the target's own next token as often as a test asks for."""

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from echo_sched.tree import ROOT, DraftTree, Frontier, Offers
from echo_sched.types import Request

RIGHT_LOGP, WRONG_LOGP, NOISE = -0.1, -2.0, 0.7  # means and spread of the log-probabilities where they carry a signal
BLIND_LOGP = (-3.0, -0.2)  # their range where they do not


class ScriptedDrafter:
    """Proposes children for which the truth is known, in a way that depends on (seed, request, path) only.

    continuations: request id -> the whole output the target will emit (from reference.py).
    chance: chance, by depth (the last entry serves all deeper ones), that a node on the true path gets the target's own
        token among its children; it then has a random rank unless there is a signal. All other children are wrong.
    signal: log-probabilities tell right from wrong, with noise, so that calibration has something to find.
    """

    name = "scripted"
    fingerprint: str | None = None
    aux_layers: tuple[int, ...] = ()

    def __init__(
        self,
        continuations: Mapping[str, Sequence[int]],
        chance: Sequence[float],
        vocab_size: int,
        *,
        seed: int = 0,
        max_children: int = 4,
        signal: bool = False,
    ) -> None:
        self.continuations = continuations
        self.chance = chance
        self.vocab_size = vocab_size
        self.seed = seed
        self.max_children = max_children
        self.signal = signal
        self.active: set[str] = set()

    def begin(self, request: Request) -> None:
        assert request.request_id not in self.active, "begun twice without a release"
        self.active.add(request.request_id)

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None:
        raise AssertionError("it asked for no features")

    def extend(self, requests: Sequence[Request]) -> None:
        assert all(request.request_id in self.active for request in requests)

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        rows = []
        for index, node in zip(frontier.request.tolist(), frontier.node.tolist(), strict=True):
            tree = trees[index]
            path_logp = 0.0 if node == ROOT else tree.path_logps[node]
            for token, logp in self._children(requests[index], tree.path(node), min(max_children, self.max_children)):
                rows.append((index, node, token, path_logp + logp))
        if not rows:
            return Offers.empty()
        columns = tuple(zip(*rows, strict=True))
        return Offers(*(np.array(column, np.int64) for column in columns[:3]), np.array(columns[3], np.float64))

    def release(self, request: Request) -> None:
        self.active.discard(request.request_id)

    def _children(self, request: Request, path: list[int], count: int) -> list[tuple[int, float]]:
        """(token, logp) of the children of the node at the end of `path`, best first."""
        assert request.request_id in self.active
        random_numbers = random.Random(f"{self.seed} {request.request_id} {len(request.output_ids)} {path}")
        right = self._right_token(request, path)
        num_wrong = min(count, self.vocab_size - 1)
        tokens = [token for token in random_numbers.sample(range(self.vocab_size), num_wrong + 1) if token != right]
        tokens = tokens[:num_wrong]
        chance = self.chance[min(len(path), len(self.chance) - 1)]
        if right is not None and random_numbers.random() < chance:
            tokens[random_numbers.randrange(len(tokens))] = right
        if self.signal:
            means = [RIGHT_LOGP if token == right else WRONG_LOGP for token in tokens]
            logps = [min(random_numbers.gauss(mean, NOISE), -0.01) for mean in means]
        else:
            logps = sorted((random_numbers.uniform(*BLIND_LOGP) for _ in tokens), reverse=True)
        excess = max(0.0, math.log(math.fsum(map(math.exp, logps))))  # siblings' chances sum to at most 1
        children = [(token, logp - excess) for token, logp in zip(tokens, logps, strict=True)]
        return sorted(children, key=lambda child: -child[1])

    def _right_token(self, request: Request, path: list[int]) -> int | None:
        """The target's own token after output_ids ++ path, or None off the true path and past its end."""
        script = self.continuations[request.request_id]
        so_far = [*request.output_ids, *path]
        on_path = list(script[: len(so_far)]) == so_far
        return script[len(so_far)] if on_path and len(so_far) < len(script) else None
