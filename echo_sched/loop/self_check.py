"""A few built-in prompts at start: does the draft head fit this target?

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
CHAIN = 3  # nodes per request
MIN_ACCEPTANCE = 0.2  # of the first drafted token; heads that fit have 0.4 and more


def self_check(loop: DecodeLoop) -> None:
    """Warn, loudly and with the likely causes, when hardly any draft is accepted. The loop is idle and may draft."""
    acceptance = first_acceptance(loop)
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


def first_acceptance(loop: DecodeLoop) -> float | None:
    """Share of short chains whose first token was accepted, on the prompts that fit the settings; None without any."""
    config = loop.config
    length = min(CHAIN, config.k_max)
    batch = min(config.max_batch_size, config.k_max // length)
    chain = {"policy": "static", "max_depth": length, "branching": 1, "price": "off", "k_max_rule": "fixed"}
    chains = loop.with_policy(config.model_copy(update=chain | {"max_batch_size": batch}))
    params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    requests = []
    for number, text in enumerate(PROMPTS):
        ids = encode_prompt(loop.tokenizer, Prompt(None, ({"role": "user", "content": text},), number, None))
        if 0 < len(ids) <= loop.max_model_len - NUM_TOKENS:
            requests.append(Request(f"self-check {number}", tuple(ids), params))
            chains.add(requests[-1])
    while chains.has_work:
        chains.step()
    drafted = sum(request.stats.num_verified > 0 for request in requests)
    num_chains = sum(request.stats.num_verify_steps for request in requests)
    num_missed = sum(request.stats.accepted_lengths[0] for request in requests)
    return 1.0 - num_missed / num_chains if drafted and num_chains else None
