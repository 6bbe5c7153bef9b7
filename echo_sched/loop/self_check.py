"""Does the draft head fit this target? A few built-in prompts, drafted one token ahead, tell within seconds.

A head that reads the wrong hidden states or was made for another model loads and runs; it only never guesses right.
"""

import logging

from echo_sched.loop.decode import DecodeLoop
from echo_sched.prompts import Prompt, encode_prompt
from echo_sched.types import Request, SamplingParams

logger = logging.getLogger(__name__)

PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the sum of a list of numbers.",
    "Tom has 3 boxes with 4 apples each. He gives away 5 apples. How many are left?",
)
NUM_TOKENS = 24
MIN_ACCEPTANCE = 0.2  # of the first drafted token; heads that fit have 0.4 and more


def first_token_acceptance(loop: DecodeLoop) -> float | None:
    """Share of verify steps that accepted a chain's first token; None where no prompt fits the settings. Loop idle."""
    config = loop.config
    one_node_each = {"policy": "static", "max_depth": 1, "branching": 1}
    batch = {"max_batch_size": min(config.max_batch_size, config.k_max)}
    chains = loop.with_policy(config.model_copy(update=one_node_each | batch))
    params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    requests = []
    for number, text in enumerate(PROMPTS):
        chat = ({"role": "user", "content": text},)
        ids = encode_prompt(loop.tokenizer, Prompt(None, chat, number, None))
        if len(ids) + NUM_TOKENS <= loop.max_model_len:
            requests.append(Request(f"self-check {number}", tuple(ids), params))
            chains.add(requests[-1])
    while chains.has_work:
        chains.step()
    num_verified = sum(request.stats.num_verified for request in requests)
    return sum(request.stats.num_accepted for request in requests) / num_verified if num_verified else None


def self_check(loop: DecodeLoop) -> None:
    """Warn, loudly and with the likely causes, when hardly any draft is accepted."""
    acceptance = first_token_acceptance(loop)
    if acceptance is None:
        logger.info("the draft head was not checked: no built-in prompt fits these settings")
    elif acceptance < MIN_ACCEPTANCE:
        logger.warning(
            "THE DRAFT HEAD HARDLY EVER GUESSES RIGHT: %.0f %% of first drafted tokens accepted on built-in prompts. "
            "The output stays right but nothing gets faster. Likely causes: the head reads other hidden states than in "
            "training (--draft-aux-layers, now %s); it was made for another target, fine-tune or quantisation; it was "
            "trained with another chat template",
            100 * acceptance,
            ",".join(map(str, loop.drafter.aux_layers)),
        )
    else:
        logger.info("draft head: %.0f %% of first drafted tokens are accepted on built-in prompts", 100 * acceptance)
