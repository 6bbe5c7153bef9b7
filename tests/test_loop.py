"""The decode loop's own rules: what it refuses, what it counts, who gets a slot, what a cancel leaves behind."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from echo_sched.engine.draft.ngram import NGramDrafter
from echo_sched.errors import ConfigError, RequestError
from echo_sched.loop.scoring import score
from echo_sched.tree import DraftTree, Frontier, Offers
from echo_sched.types import Request, SamplingParams
from tests.fakes import ScriptedDrafter
from tests.loops import EOS_ID, mixed_requests, references, run, tiny_loop, tiny_target
from tests.tiny_models import VOCAB_SIZE, decode, random_prompt

GREEDY = SamplingParams(max_new_tokens=20, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (Request("a", (), GREEDY), "input_ids"),
        (Request("a", (1, VOCAB_SIZE), GREEDY), "input_ids"),
        (Request("a", (1,) * 190, GREEDY), "max_new_tokens"),
        (Request("known", (1,), GREEDY), "rid"),
    ],
)
def test_requests_that_cannot_be_served_are_refused_by_field(request_: Request, param: str) -> None:
    loop = tiny_loop(tiny_target(), NGramDrafter())
    loop.add(Request("known", (1, 2), GREEDY))
    with pytest.raises(RequestError) as caught:
        loop.add(request_)
    assert caught.value.param == param
    assert loop.num_waiting == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", float("nan")), ("top_p", 0.0), ("top_k", 0), ("min_p", 1.5), ("max_new_tokens", 0), ("seed", -1)],
)
def test_sampling_fields_out_of_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(RequestError) as caught:
        replace(GREEDY, **{field: value})
    assert caught.value.param == field


def test_waiting_requests_get_slots_in_order_as_they_come_free() -> None:
    loop = tiny_loop(tiny_target(num_slots=2), NGramDrafter(), max_batch_size=2)
    finished: list[str] = []
    for i in range(5):
        loop.add(Request(f"r{i}", random_prompt(6, i), replace(GREEDY, max_new_tokens=4 + i)))
    while loop.has_work:
        admitted = min(2, loop.num_running + loop.num_waiting)
        ended = [event.request.request_id for event in loop.step() if event.finish]
        assert loop.num_running + len(ended) == admitted
        finished += ended
        loop.check_integrity()
    assert finished == [f"r{i}" for i in range(5)]  # equal prompts, outputs growing by one: in order of arrival
    assert loop.target.kv.num_free == 2


def test_cancel_frees_everything_at_once_wherever_the_request_is() -> None:
    drafter = NGramDrafter()
    loop = tiny_loop(tiny_target(num_slots=2), drafter, max_batch_size=2)
    requests = {name: Request(name, random_prompt(3), GREEDY) for name in ("decoding", "prefilling", "waiting")}
    requests["prefilling"].prompt_ids = random_prompt(100)
    for request in requests.values():
        loop.add(request)
    loop.step()
    loop.step()
    assert all(getattr(request, name) for name, request in requests.items()), "each is in the phase of its name"
    for name in ("waiting", "prefilling", "decoding", "unknown"):
        loop.cancel(name)
        loop.check_integrity()
    assert not loop.has_work and loop.target.kv.num_free == 2 and loop.step() == []


def test_records_and_statistics_count_the_same_tokens() -> None:
    outputs = {name: result.output_ids for name, result in references("llama", 8).items()}
    loop = tiny_loop(tiny_target(), ScriptedDrafter(outputs, (0.8,), VOCAB_SIZE), max_depth=5)
    requests = mixed_requests(8)
    for request in requests:
        loop.add(request)
    records = []
    while loop.has_work:
        loop.step()
        assert loop.last_record is not None
        records.append(loop.last_record)
    assert sum(r.num_emitted for r in records) == sum(len(r.output_ids) for r in requests)
    assert sum(r.num_prompt_tokens for r in records) == sum(len(r.prompt_ids) for r in requests)
    assert sum(r.num_verified for r in records) == sum(r.stats.num_verified for r in requests)
    assert sum(r.num_accepted for r in records) == sum(r.stats.num_accepted for r in requests)
    assert all(r.num_accepted <= r.num_verified <= r.k_max for r in records)
    for request in requests:
        stats = request.stats
        assert stats.num_emitted == len(request.output_ids) - 1  # the first token comes from the prompt
        assert sum(n * steps for n, steps in stats.accepted_lengths.items()) == stats.num_accepted
        assert stats.num_verify_steps == sum(stats.accepted_lengths.values())


def test_a_request_may_be_decoded_plainly_beside_speculating_ones() -> None:
    outputs = {name: result.output_ids for name, result in references("llama", 8).items()}
    loop = tiny_loop(tiny_target(), ScriptedDrafter(outputs, (0.9,), VOCAB_SIZE))
    requests = mixed_requests(8)
    run(loop, requests)
    for request in requests:
        plain = not request.params.speculation
        assert (request.stats.num_verified == 0) == (plain or request.params.max_new_tokens == 1)


def test_texts_end_where_the_stop_string_begins_and_ids_with_the_stop() -> None:
    requests = mixed_requests(8)
    texts = run(tiny_loop(tiny_target(), NGramDrafter()), requests)
    kinds = set()
    for request in requests:
        assert request.finish is not None
        whole = decode(request.output_ids)
        if isinstance(request.finish.matched, str):
            assert texts[request.request_id] == whole[: whole.index(request.finish.matched)]
            kinds.add("string")
        elif request.finish.type == "stop":
            assert request.output_ids[-1] == request.finish.matched
            assert request.finish.matched == EOS_ID or request.finish.matched in request.params.stop_token_ids
            assert texts[request.request_id] == decode(request.output_ids[:-1])
            kinds.add("id")
        else:
            assert texts[request.request_id] == whole
            kinds.add("length")
    assert kinds == {"string", "id", "length"}


def test_a_drafter_that_skipped_steps_catches_up() -> None:
    """K_max 0 for a while, then drafting again: the n-gram index knows everything committed in between."""
    target, drafter = tiny_target(), NGramDrafter()
    loop = tiny_loop(target, drafter)
    off, on = tiny_loop(target, drafter, policy="off").policy, loop.policy
    request = Request("a", (3, 4, 5) * 6, replace(GREEDY, max_new_tokens=60))
    loop.add(request)
    while loop.has_work:
        loop.scheduler.policy = off if len(request.output_ids) < 30 else on
        loop.step()
    expected = Request("b", request.prompt_ids, request.params)
    run(tiny_loop(target, NGramDrafter(), policy="off"), [expected])
    assert request.output_ids == expected.output_ids and request.stats.num_verified > 0


def test_scheduling_can_change_on_a_loaded_target_and_nothing_else() -> None:
    loop = tiny_loop(tiny_target(), NGramDrafter())
    assert loop.with_policy(loop.config.model_copy(update={"policy": "off", "k_max": 3})).policy.name == "off"
    for update in ({"dtype": "float32"}, {"k_max": loop.config.k_max + 1}):
        with pytest.raises(ConfigError, match="cannot"):
            loop.with_policy(loop.config.model_copy(update=update))


def test_score_is_what_plain_decoding_draws_from() -> None:
    loop = tiny_loop(tiny_target(), NGramDrafter())
    request = Request("a", random_prompt(9), GREEDY)
    run(loop, [request])
    tokens = [*request.prompt_ids, *request.output_ids]
    for cut in range(9, len(tokens)):
        assert int(score(loop, tokens[:cut]).argmax()) == tokens[cut]


def test_a_request_may_fill_the_context_in_either_numerics() -> None:
    """Slots hold whole blocks of keys, so the last token of the longest request has room for its tree."""
    for numerics in ("fast", "exact"):
        loop = tiny_loop(tiny_target(numerics=numerics, max_model_len=70), NGramDrafter())  # type: ignore[arg-type]
        request = Request("a", (3, 4, 5) * 5, replace(GREEDY, max_new_tokens=55))
        run(loop, [request])
        assert request.num_tokens == 70


def test_logits_that_are_not_finite_end_their_request_alone() -> None:
    """A token whose embedding is infinite poisons its own request, not its neighbours, nor the slot's next owner."""
    target = tiny_target(num_slots=2)
    with torch.no_grad():
        target.model.get_input_embeddings().weight[50] = float("inf")
    loop = tiny_loop(target, NGramDrafter(), max_batch_size=2)
    poisoned = Request("poisoned", (1, 50, 2), GREEDY)
    healthy, heir = (Request(name, (1, 2), GREEDY) for name in ("healthy", "heir"))
    events = []
    for request in (poisoned, healthy, heir):
        loop.add(request)
    while loop.has_work:
        events += loop.step()
        loop.check_integrity()
    assert poisoned.finish is not None and poisoned.finish.type == "abort" and not poisoned.output_ids
    assert [event.token_ids for event in events if event.request is poisoned] == [()]
    assert healthy.output_ids == heir.output_ids and len(heir.output_ids) == GREEDY.max_new_tokens


class BrokenDrafter(ScriptedDrafter):
    """A third of what it offers is not a number, as from weights gone wrong."""

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        offers = super().expand(requests, trees, frontier, max_children)
        offers.path_logp[::3] = np.nan
        return offers


def test_a_drafter_gone_wrong_costs_drafts_and_nothing_else() -> None:
    target, requests = tiny_target(), mixed_requests(4)
    scripts = {name: result.output_ids for name, result in references("llama", 4).items()}
    run(tiny_loop(target, BrokenDrafter(scripts, (0.9,), VOCAB_SIZE), policy="echo", explore=0), requests)
    assert {request.request_id: tuple(request.output_ids) for request in requests} == {
        name: tuple(tokens) for name, tokens in scripts.items()
    }
    assert sum(request.stats.num_accepted for request in requests) > 0


def test_stops_that_would_slow_everybody_are_refused() -> None:
    for update in ({"stop": ("a",) * 65}, {"stop": ("a" * 257,)}, {"stop_token_ids": tuple(range(1025))}):
        with pytest.raises(RequestError, match="at most"):
            replace(GREEDY, **update)
