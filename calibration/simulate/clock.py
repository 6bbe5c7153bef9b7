"""What a simulated step takes: all that a real one spends time on, by the cost table.

    forward    T(N, L) of roots, nodes and prompt chunks, behind as many tokens as they have in the cache together
    drafting   a level's seconds for each level
    overhead   scheduling, acceptance, commits and text: per step, request, node and level

Knows numbers of a step, not what they stand for.
"""

from typing import NamedTuple

from echo_sched.scheduler.cost import CostTable


class StepWork(NamedTuple):
    """What a step computed."""

    num_requests: int  # decoding, and prefilling with a chunk in this step
    num_rows: int  # roots, nodes and prompt tokens
    num_cached: int  # tokens that those requests had in the cache before, all together
    num_nodes: int
    num_levels: int


def step_seconds(work: StepWork, cost: CostTable) -> float:
    """Seconds of the whole step."""
    forward = cost.seconds_for(work.num_rows, work.num_cached / work.num_requests, work.num_requests)
    seconds = forward + work.num_levels * cost.draft_level_seconds
    if cost.overhead is not None:
        seconds += cost.overhead.seconds_for(work.num_requests, work.num_nodes, work.num_levels)
    return seconds
