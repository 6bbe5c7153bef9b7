"""What the EAGLE-3 drafter knows of one request. Knows no head and no cache."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from echo_sched.tree import ROOT


@dataclass
class RequestDraft:
    """What is known of one request."""

    slot: int
    pending: list[Tensor] = field(default_factory=list)  # features [n, feature_size] not fed yet, by position
    root: Tensor | None = None  # [hidden] the layer's output for the last pair; None until all pairs are fed
    output: dict[int, int] = field(default_factory=dict)  # node (or ROOT) -> its row in the drafter's outputs
    row: dict[int, int] = field(default_factory=lambda: {ROOT: -1})  # node -> its place in the slot's tail
    tail: list[int] = field(default_factory=list)  # parents of the rows behind the pairs

    @property
    def num_pending(self) -> int:
        return sum(len(features) for features in self.pending)

    def take(self, count: int) -> Tensor:
        """The features of the next `count` pairs, which are pending no more."""
        features = self.pending[0] if len(self.pending) == 1 else torch.cat(self.pending)
        self.pending = [features[count:]] if count < len(features) else []
        return features[:count]
