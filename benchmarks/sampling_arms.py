"""What the requests of each arm of the sampling benchmark ask for. Knows nothing of engines or clocks."""

from dataclasses import replace
from typing import NamedTuple

from echo_sched.types import LogprobParams, SamplingParams

BASELINE = "greedy"
TOP_LOGPROBS = LogprobParams(top_logprobs_num=5)


class Fields(NamedTuple):
    """What every request of an arm asks for."""

    params: SamplingParams
    logprobs: LogprobParams | None = None


def arms(vocab_size: int) -> dict[str, Fields]:
    """Arms by name. A bias names 64 tokens, spread over the vocabulary."""
    greedy, sampled = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)
    filtered = replace(sampled, top_k=50, top_p=0.95)
    bias = tuple((token, 0.5) for token in range(0, vocab_size, max(vocab_size // 64, 1)))
    return {
        BASELINE: Fields(greedy),
        "greedy, penalties": Fields(_penalised(greedy)),
        "temperature": Fields(sampled),
        "temperature 1.5": Fields(replace(sampled, temperature=1.5)),
        "top-k and top-p": Fields(filtered),
        "top-p": Fields(replace(sampled, temperature=1.0, top_p=0.95)),
        "min-p": Fields(replace(sampled, min_p=0.05)),
        "penalties": Fields(_penalised(sampled)),
        "logit bias": Fields(replace(sampled, logit_bias=bias)),
        "logprobs": Fields(sampled, TOP_LOGPROBS),
        "all of them": Fields(replace(_penalised(filtered), min_p=0.02, logit_bias=bias), TOP_LOGPROBS),
    }


def _penalised(params: SamplingParams) -> SamplingParams:
    return replace(params, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.2)
