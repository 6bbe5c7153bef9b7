"""Whether prompts set the pace, and what plain decoding adds to steps that run for prompts anyway.

    own share = beside + (1 - beside) * min(1, open / KNEE)

`open` is the share of steps, of late, that had room for all prompts under way; `beside`, mean over the others, is
(T(B + P) - T(P)) / T(B). A token that is accepted saves a request a later step. As long as some steps are decoding's,
those get fewer, and it saves its part of a whole one. Where prompts wait at every step, as many steps as prompts take
have to run whatever is accepted, and it saves but a row. Knows no price.
"""

from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.live_cost import LiveCost
from echo_sched.scheduler.plan import Load

MEMORY = 0.1  # weight of the latest step
KNEE = 0.05  # share of open steps from which on a step is decoding's own
LEAST = 0.01  # of plain decoding's seconds: a row is never for nothing


class Crowding:
    """Of one engine, of late."""

    def __init__(self) -> None:
        self._open, self._beside = 1.0, 1.0

    @property
    def own_share(self) -> float:
        """Part of plain decoding's seconds that tokens are worth."""
        return self._beside + (1.0 - self._beside) * min(1.0, self._open / KNEE)

    def observe(self, load: Load, cost: CostTable | LiveCost) -> None:
        """A step with this load is over."""
        if load.num_requests == 0:
            return
        crowded = load.num_waiting_tokens > 0 and load.num_prompt_tokens > 0
        self._open += MEMORY * (float(not crowded) - self._open)
        if crowded:
            prompts, cached = load.num_prompt_tokens, load.num_cached_tokens
            more = cost.seconds_for(load.num_requests + prompts, cached) - cost.seconds_for(prompts, cached)
            share = min(max(more / cost.seconds_for(load.num_requests, cached), LEAST), 1.0)
            self._beside += MEMORY * (share - self._beside)
