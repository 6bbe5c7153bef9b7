"""Which arms run on which requests, and in what order: fair to all of them. Knows no command line and no files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.exactness import MarginOf, Tokens
from benchmarks.trial import SharedEngine, Trial, run_trial
from echo_sched.arms import Arm
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
    blocks: Sequence[Block]
    num_repeats: int
    num_warmups: int

    @property
    def num_requests(self) -> int:
        """Measured requests of all trials."""
        return self.num_repeats * sum(len(block.arms) * len(block.prompts) for block in self.blocks)

    def order(self) -> Iterator[tuple[int, Block, Arm]]:
        """(repeat, block, arm). Machines drift: arms follow each other closely and take turns at being first."""
        for repeat in range(self.num_repeats):
            for block in self.blocks:
                first = repeat % len(block.arms)
                for arm in (*block.arms[first:], *block.arms[:first]):
                    yield repeat, block, arm

    def run(
        self, engine: SharedEngine, repeat: int, block: Block, arm: Arm, on_finish: Callable[[], None] = lambda: None
    ) -> Trial:
        """One trial, warmed up first."""
        current = engine.with_policy(arm.config)
        label = f"{arm.name}-{block.name}-{repeat}"
        num_warm = min(WARMUP_TOKENS, block.params.max_new_tokens)
        if self.num_warmups:
            run_trial(current, block.requests(f"warm-{label}", self.num_warmups, num_warm), block.concurrency)
        measured = block.requests(label, len(block.prompts), block.params.max_new_tokens)
        return run_trial(current, measured, block.concurrency, on_finish)
