"""Which arms run on which requests, and in what order: fair to all of them. Knows no command line and no files."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.exactness import MarginOf, Tokens
from benchmarks.trial import Run, Trial
from echo_sched.arms import Arm
from echo_sched.closed_loop import Engine, SharedEngine, in_turn, serve_in_turns
from echo_sched.types import Request, SamplingParams

WARMUP_TOKENS = 8  # enough steps to draft, verify and commit

Margin = Callable[[Tokens, Tokens, SamplingParams], float]  # (prompt, output before the choice, how it is made)


@dataclass(frozen=True)
class Block:
    """Arms that are compared on the same requests, never more than `concurrency` of them at once."""

    name: str  # distinct within a plan
    arms: Sequence[Arm]
    concurrency: int
    prompts: Sequence[tuple[int, ...]]  # one per request
    params: SamplingParams  # request i samples with params.seed + i

    def requests(self, label: str, num_requests: int, max_new_tokens: int) -> list[Request]:
        """The first `num_requests`, the prompts again from the first where there are fewer."""
        return [
            Request(f"{label}-{i}", self.prompts[i % len(self.prompts)], self.request_params(i, max_new_tokens))
            for i in range(num_requests)
        ]

    def request_params(self, index: int, max_new_tokens: int) -> SamplingParams:
        return replace(self.params, seed=self.params.seed + index, max_new_tokens=max_new_tokens)

    def margins(self, margin: Margin) -> MarginOf:
        """`margin` for a request of this block; arms that fork at the same place share one forward."""
        known: dict[tuple[int, int, Tokens], float] = {}

        def margin_of(request: int, position: int, before: Tokens) -> float:
            key = request, position, tuple(before)
            if key not in known:
                params = self.request_params(request, self.params.max_new_tokens)
                known[key] = margin(self.prompts[request], before, params)
            return known[key]

        return margin_of


@dataclass(frozen=True)
class Plan:
    """Machines slow down for a second or for minutes. Within a repeat of a block the arms take turns of `turn_seconds`,
    each with KV of its own, so that whatever happens to the machine happens to all of them. 0: KV has room for one arm
    only, and they run one after the other.
    """

    blocks: Sequence[Block]
    num_repeats: int
    num_warmups: int
    turn_seconds: float = 1.0

    @property
    def num_requests(self) -> int:
        """Measured requests of all trials."""
        return self.num_repeats * sum(len(block.arms) * len(block.prompts) for block in self.blocks)

    def order(self) -> Iterator[tuple[int, Block]]:
        """(repeat, block)."""
        return product(range(self.num_repeats), self.blocks)

    def run(
        self, engine: SharedEngine, repeat: int, block: Block, on_finish: Callable[[], None] = lambda: None
    ) -> dict[str, Trial]:
        """A trial of every arm, by name in the block's order; each arm is warmed up, and the first in some repeat."""
        arms = in_turn(block.arms, repeat)
        gc.collect()  # engines of the block before refer to themselves, and their KV is large
        if self.turn_seconds:
            runs = {arm.name: self._begin(engine.beside(arm.config), repeat, block, arm, on_finish) for arm in arms}
            serve_in_turns([run.loop for run in runs.values()], self.turn_seconds)
        else:
            runs = {}
            for arm in arms:
                runs[arm.name] = self._begin(engine.with_policy(arm.config), repeat, block, arm, on_finish)
                runs[arm.name].finished()
        return {arm.name: runs[arm.name].finished() for arm in block.arms}

    def _begin(self, engine: Engine, repeat: int, block: Block, arm: Arm, on_finish: Callable[[], None]) -> Run:
        """Warmed up and ready."""
        label = f"{arm.name}-{block.name}-{repeat}"
        num_warm = min(WARMUP_TOKENS, block.params.max_new_tokens)
        if self.num_warmups:
            Run(engine, block.requests(f"warm-{label}", self.num_warmups, num_warm), block.concurrency).finished()
        measured = block.requests(label, len(block.prompts), block.params.max_new_tokens)
        return Run(engine, measured, block.concurrency, on_finish)
