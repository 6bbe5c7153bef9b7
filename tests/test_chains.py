"""`bench chains`: both sides count the same chains, and only equal text is compared."""

from typing import Any

import httpx
import pytest

from benchmarks.chains import Chains, ask, compare, decode
from echo_sched.engine.reference import reference_decode
from echo_sched.errors import DataError
from echo_sched.types import SamplingParams
from tests.fakes import ScriptedDrafter
from tests.loops import tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE, random_prompt, tiny_model

CHAIN = 3


class CountingServer:
    """A server that answers with the same tokens always, and whose counters say what it is told to say."""

    def __init__(self, tokens: list[int], num_drafts: int, reached: list[int]) -> None:
        self.tokens, self.gain = tokens, (num_drafts, *reached)
        self.bodies: list[bytes] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            counts = [7 + len(self.bodies) * gain for gain in self.gain]
            drafts, positions = (
                "vllm:spec_decode_num_drafts_total",
                "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            )
            lines = [f"# TYPE {drafts} counter", f"{drafts} {counts[0]}", f"# TYPE {positions} counter"]
            lines += [f'{positions}{{position="{i}"}} {count}' for i, count in enumerate(counts[1:])]
            return httpx.Response(200, text="\n".join([*lines, ""]))
        self.bodies.append(request.content)
        return httpx.Response(200, json={"choices": [{"token_ids": self.tokens}]})


def client(server: Any) -> httpx.Client:
    return httpx.Client(base_url="http://server", transport=httpx.MockTransport(server))


def test_a_server_is_asked_for_tokens_and_its_counters_are_read_around_it() -> None:
    server = CountingServer([5, 6, 7, 8], 3, [2, 1, 0])
    for _ in range(2):
        assert ask(client(server), "m", [1, 2], 4, CHAIN) == Chains((5, 6, 7, 8), 3, (2, 1, 0))
    assert b'"ignore_eos":true' in server.bodies[0]


def test_a_server_that_drafts_less_is_refused() -> None:
    with pytest.raises(DataError, match="chains of 4"):
        ask(client(CountingServer([5], 1, [1, 1, 1])), "m", [1], 1, 4)


def test_a_server_that_fails_is_named() -> None:
    with pytest.raises(DataError, match=r"http://server.*500"):
        ask(client(lambda request: httpx.Response(500)), "m", [1], 1, 4)


@pytest.mark.parametrize(("chance", "reached"), [((1.0,), (6, 6, 6)), ((0.0,), (0, 0, 0))])
def test_chains_are_counted_whole_up_to_the_last_one_that_begins_in_time(
    chance: tuple[float, ...], reached: tuple[int, ...]
) -> None:
    """A drafter that is always right: chains begin behind 1, 5, 9, 13, 17 and 21 tokens; always wrong: behind each."""
    prompt, params = random_prompt(12), SamplingParams(30, temperature=0.0, ignore_eos=True)
    answer = reference_decode(tiny_model("llama"), prompt, params, ()).output_ids
    drafter = ScriptedDrafter({"chain": answer}, chance, VOCAB_SIZE, max_children=1)
    loop = tiny_loop(tiny_target(), drafter, policy="static", max_depth=CHAIN, branching=1, k_max=CHAIN)
    chains = decode(loop, prompt, 22, CHAIN)
    assert chains.tokens == tuple(answer[:22])
    assert chains.num_reached == reached
    assert chains.num_chains == (6 if chance[0] else 21)
    assert not loop.has_work and loop.target.kv.num_free == 4


def test_only_prompts_with_equal_tokens_are_compared() -> None:
    same = Chains((1, 2), 10, (5, 2)), Chains((1, 2), 8, (4, 0))
    forked = Chains((1, 2), 100, (0, 0)), Chains((1, 3), 100, (100, 100))
    found = compare([same, forked], 2)
    assert (found["num_prompts"], found["num_equal"]) == (2, 1)
    assert found["positions"] == [
        {"theirs": 0.5, "ours": 0.5, "ratio": 1.0},
        {"theirs": 0.2, "ours": 0.0, "ratio": 0.0},
    ]
    with pytest.raises(DataError, match="different tokens on all 1"):
        compare([forked], 2)
