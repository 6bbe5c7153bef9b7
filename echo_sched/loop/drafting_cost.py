"""Times what drafting adds to a step, at several batch sizes, on the idle loop at hand.

The same few requests decode in turns: without drafts, with chains of one node, with chains of CHAIN. What the long
chains take more is their further levels. The first step that drafts also feeds the drafter whole prompts, which tells
what feeding a token costs. What the short chains take more than none, beyond feeding, is the start of a step that
drafts. A step that begins a turn is not like the others and does not count.
"""

from statistics import median
from typing import NamedTuple

import numpy as np

from echo_sched.loop.decode import DecodeLoop
from echo_sched.scheduler.cost import DraftingCost
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.types import Request, SamplingParams

NUM_REQUESTS = (1, 4, 16, 64)
CHAIN = 3  # nodes of the long chains: a level below tree nodes takes longer than one below roots
NUM_ROUNDS = 3  # of one turn of each kind
TURN = 4  # steps
PROMPT_LEN = 96
MOST_FED = 16  # requests; a drafter may take several steps to be fed the prompts of more
HOST_PHASES = ("schedule", "accept", "commit")


class _Chains:
    """The policy: a chain of `length` nodes for everybody, the likeliest first where K_max is too small for all."""

    name = "chains"

    def __init__(self, k_max: int, length: int) -> None:
        thresholds = (None,) * length
        self._plan = Plan(k_max if length else 0, length, length, widths=(1,) * length, thresholds=thresholds)

    def plan(self, load: Load) -> Plan:
        return self._plan

    def observe(self, load: Load, feedback: Feedback) -> None:
        """Learns nothing."""


class _Step(NamedTuple):
    drafting: float  # seconds
    host: float
    num_fed: int  # tokens that it fed the drafter


class _Usual(NamedTuple):
    """Medians over the steps of one kind."""

    drafting: float
    host: float
    num_fed: float

    @staticmethod
    def of(steps: list[_Step]) -> "_Usual":
        return _Usual(*map(median, zip(*steps, strict=True)))


class _Run(NamedTuple):
    """Of so many requests."""

    first: _Step  # that drafts: it feeds whole prompts
    plain: _Usual
    short: _Usual
    long: _Usual | None  # None: K_max has no room for them


def measure_drafting(loop: DecodeLoop) -> DraftingCost:
    """The drafter's costs up to the batch and K_max of the loop's settings; zeros where they leave nothing to time."""
    config = loop.config
    most = min(max(config.k_max // CHAIN, 1), config.max_batch_size)  # requests that have room for long chains
    sizes = {size for size in (*NUM_REQUESTS, most) if size <= config.max_batch_size} if config.k_max else ()
    runs = {size: run for size in sorted(sizes) if (run := _run(loop, size)) is not None}
    if not runs:
        return DraftingCost.constant(0.0)
    pair = _pair(runs)
    starts = [_start(run, pair) for run in runs.values()]
    levels = {size: _level(run) for size, run in runs.items() if run.long is not None}
    levels = levels or {1: starts[0]}  # no room for any: a further level takes no longer than the first
    return DraftingCost(tuple(runs), _rising(starts), tuple(levels), _rising(list(levels.values())), pair)


def _rising(seconds: list[float]) -> tuple[float, ...]:
    """More requests never take less, only in a noisy measurement."""
    return tuple(np.maximum.accumulate(seconds).tolist())


def _pair(runs: dict[int, _Run]) -> float:
    """Of the most requests whose first step fed clearly more than others: a short context leaves prompts too short."""
    for size, run in sorted(((size, run) for size, run in runs.items() if size <= MOST_FED), reverse=True):
        fed_more = run.first.num_fed - run.short.num_fed
        if fed_more >= size:
            return max(0.0, (run.first.drafting - run.short.drafting) / fed_more)
    return 0.0


def _start(run: _Run, pair: float) -> float:
    short = run.short
    return max(0.0, short.drafting - short.num_fed * pair + short.host - run.plain.host)


def _level(run: _Run) -> float:
    assert run.long is not None
    more = run.long.drafting + run.long.host - run.short.drafting - run.short.host
    return max(0.0, more / (CHAIN - 1))


def _run(loop: DecodeLoop, size: int) -> _Run | None:
    """Decode `size` requests in turns. None where they end before everything was timed."""
    config = loop.config
    whole_prompts = {"max_batch_size": size, "chunk_tokens": size * PROMPT_LEN}
    timed = loop.with_policy(config.model_copy(update={"policy": "static", "price": "off", **whole_prompts}))
    requests = [_request(loop, number) for number in range(size)]
    for request in requests:
        timed.add(request)
    lengths = (0, 1, CHAIN) if size * CHAIN <= config.k_max else (0, 1)
    turns: dict[int, list[_Step]] = {length: [] for length in lengths}
    drafted: list[_Step] = []
    num_unfed = 0
    for number in range(len(lengths) * NUM_ROUNDS * TURN):
        turn, step = divmod(number, TURN)
        length = lengths[turn % len(lengths)]
        if step == 0:
            timed.scheduler.change(_Chains(config.k_max, length), {}, explore=0.0, adapt=False)
        timed.step()
        record = timed.last_record
        assert record is not None, "a step has just run"
        if record.num_decoding < size and record.num_prompt_tokens == 0:
            break
        host = sum(record.seconds[name] for name in HOST_PHASES)
        taken = _Step(record.seconds["draft"], host, num_unfed)
        if record.num_levels:
            drafted.append(taken)
            num_unfed = 0
        num_unfed += record.num_prompt_tokens + record.num_decoding + record.num_accepted
        if step and record.num_decoding == size and record.num_levels == length:
            turns[length].append(taken)
    for request in requests:
        timed.cancel(request.request_id)
    if not all(turns.values()):
        return None
    plain, short, *long = (_Usual.of(steps) for steps in turns.values())
    return _Run(drafted[0], plain, short, long[0] if long else None)


def _request(loop: DecodeLoop, number: int) -> Request:
    """A short arbitrary prompt: what is said does not matter to the clock."""
    tokens = NUM_ROUNDS * TURN * (1 + 2 + CHAIN + 1) + CHAIN + 1  # of everybody whose drafts are all accepted
    max_new_tokens = min(tokens, loop.max_model_len - 2)
    length = min(PROMPT_LEN, loop.max_model_len - max_new_tokens)
    ids = np.random.default_rng(number).integers(0, loop.vocab_size, length)
    return Request(
        f"timing {number}", tuple(ids.tolist()), SamplingParams(max_new_tokens, temperature=0.0, ignore_eos=True)
    )
