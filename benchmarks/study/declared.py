"""What a study may say: which arms, on which prompts, how often. Data only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Half = Literal["tuning", "report"]

MIXED = ("mt-bench", "humaneval", "gsm8k")


@dataclass(frozen=True)
class Group:
    """Arms that meet on the same requests, at several concurrencies.

    An arm is written as for `bench compare`; besides there are
        tree:3.2.1   a fixed tree, that many children per node at each depth, whole for every request, no price
        best-tree    the fastest of those in the study `grid` at the same concurrency
        ARM@NAME     the arm with the profile that the command line names NAME
    """

    arms: tuple[str, ...]  # plain decoding, `off`, first
    num_requests: Mapping[int, int]  # concurrency -> requests of a trial
    name: str = ""  # what tells it from the study's other groups
    temperature: float = 0.0
    sets: tuple[str, ...] = MIXED  # prompt sets, in turn


@dataclass(frozen=True)
class Study:
    name: str
    question: str
    groups: tuple[Group, ...]
    max_new_tokens: int  # of every request: EOS is ignored
    num_repeats: int
    half: Half = "report"
    settings: Mapping[str, Any] = field(default_factory=dict)  # the engine's, other than its defaults
    most_nodes: int | None = None  # trees that would verify more nodes per step are left out
    num_margins: int = 0  # forks of a first repeat's trial whose margin is computed: each is a forward of its own

    def quick(self) -> "Study":
        """The same, as small as it gets: shows that it runs, measures nothing."""
        groups = tuple(replace(group, num_requests=dict.fromkeys(group.num_requests, 2)) for group in self.groups)
        return replace(self, groups=groups, max_new_tokens=8, num_repeats=1)
