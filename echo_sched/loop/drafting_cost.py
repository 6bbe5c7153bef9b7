"""Times what drafting adds to a step, at several batch sizes, on the idle loop at hand.

The same few requests run three times: without drafts, with chains of one node and with longer ones. What the longer
chains take more is levels. The first step that drafts also feeds the drafter whole prompts, which tells what feeding a
token costs. What the short chains take more than none, beyond level and feeding, is the start of a step that drafts.
"""

from typing import NamedTuple

import numpy as np

from echo_sched.loop.decode import DecodeLoop
from echo_sched.scheduler.cost import DraftingCost
from echo_sched.types import Request, SamplingParams, StepRecord

NUM_REQUESTS = (1, 4, 16, 64)
CHAIN = 2  # nodes of the longer chains
NUM_STEPS = 7  # of each run, all requests decoding
PROMPT_LEN = 24
HOST_PHASES = ("schedule", "accept", "commit")


class _Run(NamedTuple):
    """Medians over the steps of one run. Seconds."""

    drafting: float  # per step, the first left out
    host: float
    levels: float  # drafted per step
    first_drafting: float  # of the first step, which feeds whole prompts
    fed: float  # tokens fed per step after the first
    prompt_tokens: int  # of all requests


def measure_drafting(loop: DecodeLoop) -> DraftingCost:
    """The drafter's costs up to the batch and K_max of the loop's settings; zeros where they leave nothing to time."""
    most = min(loop.config.max_batch_size, loop.config.k_max // CHAIN)
    measured = {size: costs for size in NUM_REQUESTS if size <= most and (costs := _costs(loop, size)) is not None}
    if not measured:
        return DraftingCost.constant(0.0)
    starts, levels, pairs = zip(*measured.values(), strict=True)
    return DraftingCost(tuple(measured), _rising(starts), _rising(levels), pairs[-1])


def _rising(seconds: tuple[float, ...]) -> tuple[float, ...]:
    """More requests never take less, only in a noisy measurement."""
    return tuple(np.maximum.accumulate(seconds).tolist())


def _costs(loop: DecodeLoop, num_requests: int) -> tuple[float, float, float] | None:
    """Seconds of start, level and pair for so many requests; None where drafts ended before anything was timed."""
    plain, short, long = (_run(loop, num_requests, length) for length in (0, 1, CHAIN))
    if plain is None or short is None or long is None or long.levels <= short.levels:
        return None
    level = max(0.0, (long.drafting - short.drafting) / (long.levels - short.levels))
    fed_more = short.prompt_tokens - short.fed  # by the first step; a short context may leave prompts too short to tell
    pair = max(0.0, (short.first_drafting - short.drafting) / fed_more) if fed_more >= num_requests else 0.0
    start = max(0.0, short.drafting - short.levels * level - short.fed * pair + short.host - plain.host)
    return start, level, pair


def _run(loop: DecodeLoop, num_requests: int, chain: int) -> _Run | None:
    """Run chains of `chain` nodes; 0: plain decoding."""
    policy = {"policy": "static", "max_depth": chain, "branching": 1} if chain else {"policy": "off"}
    as_set = {"price": "off", "k_max_rule": "fixed", "max_batch_size": num_requests}
    whole_prompts = {"chunk_tokens": num_requests * PROMPT_LEN}
    timed = loop.with_policy(loop.config.model_copy(update=policy | as_set | whole_prompts))
    requests = [_request(loop, number) for number in range(num_requests)]
    for request in requests:
        timed.add(request)
    records: list[StepRecord] = []
    while timed.has_work and len(records) < NUM_STEPS:
        timed.step()
        record = timed.last_record
        assert record is not None, "a step has just run"
        if record.num_decoding == num_requests and record.num_prompt_tokens == 0:
            records.append(record)
    for request in requests:
        timed.cancel(request.request_id)
    if len(records) < 2:
        return None
    first, *others = records
    return _Run(
        drafting=float(np.median([record.seconds["draft"] for record in others])),
        host=float(np.median([sum(record.seconds[name] for name in HOST_PHASES) for record in others])),
        levels=float(np.median([record.num_levels for record in others])),
        first_drafting=first.seconds["draft"],
        fed=float(np.median([record.num_emitted for record in others])),
        prompt_tokens=sum(len(request.prompt_ids) for request in requests),
    )


def _request(loop: DecodeLoop, number: int) -> Request:
    """A short arbitrary prompt: what is said does not matter to the clock."""
    max_new_tokens = min((CHAIN + 1) * (NUM_STEPS + 1), loop.max_model_len - 2)
    length = min(PROMPT_LEN, loop.max_model_len - max_new_tokens)
    ids = np.random.default_rng(number).integers(0, loop.vocab_size, length)
    return Request(
        f"timing {number}", tuple(ids.tolist()), SamplingParams(max_new_tokens, temperature=0.0, ignore_eos=True)
    )
