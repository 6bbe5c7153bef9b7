"""Loops where grammars leave one way to go on: plain decoding's tokens, and no other cut of the text is verified."""

import json
from collections import Counter
from functools import cache

import pytest

from echo_sched.engine.choice import Language
from echo_sched.engine.grammar import Scout
from echo_sched.engine.reference import ReferenceResult, reference_decode
from echo_sched.loop import decode as decode_module
from echo_sched.tree import DraftTree, Segment
from echo_sched.types import Request, SamplingParams
from tests.byte_text import texts
from tests.fakes import ScriptedDrafter
from tests.languages import RegexLanguage, schema_regex
from tests.loops import EOS_ID, tiny_loop
from tests.test_grammar import closed
from tests.test_grammar_loop import assert_plain, decode, grammar_target
from tests.tiny_models import VOCAB_SIZE, random_prompt, tiny_model

RECORD = {
    "type": "object",
    "properties": {
        "ab12": {"const": "abab12"},
        "true": {"enum": ["ab1200", "ab12ab", "aba"]},
        "o": {"type": "object", "properties": {"12": {"type": "boolean"}}},
    },
}
KINDS = (
    SamplingParams(max_new_tokens=20, temperature=0.0, regex="true12"),
    SamplingParams(max_new_tokens=20, seed=51, regex="(true|false)12(abab|bb)12"),
    SamplingParams(max_new_tokens=60, temperature=0.0, json_schema=json.dumps(closed(RECORD))),
    SamplingParams(max_new_tokens=60, seed=52, json_schema=json.dumps(closed(RECORD)), ignore_eos=True),
    SamplingParams(max_new_tokens=30, seed=53, temperature=0.7, regex="(aba12 ){2,4}null", top_k=2),
    SamplingParams(max_new_tokens=9, seed=54, regex="[ab]{2}true12(ab)?(12)*", stop_token_ids=(texts().index("e"),)),
)


class AnyCut(RegexLanguage):
    """The same texts, however they are cut."""

    def _forced_token(self, ids: tuple[int, ...]) -> int | None:
        return None


def regex_of(params: SamplingParams) -> str:
    return params.regex or schema_regex(json.loads(params.json_schema or ""))


@cache
def languages() -> tuple[dict[str, RegexLanguage], dict[str, RegexLanguage]]:
    """Of each request: as the mask cuts forced text, and with any cut."""
    regexes = {f"f{i}": regex_of(params) for i, params in enumerate(KINDS)}
    return (
        {name: RegexLanguage(regex) for name, regex in regexes.items()},
        {name: AnyCut(regex) for name, regex in regexes.items()},
    )


class CutsDrafter(ScriptedDrafter):
    """Offers every cut of what may come next, the longest first, with the target's own token among them."""

    def _children(self, request: Request, path: list[int], count: int) -> list[tuple[int, float]]:
        loose, so_far = languages()[1][request.request_id], [*request.output_ids, *path]
        cuts = [token for token in range(VOCAB_SIZE) if loose.begins([*so_far, token])]
        cuts.sort(key=lambda token: (token != self._right_token(request, path), -len(texts()[token] or ""), token))
        return [(token, -0.3 * (rank + 1)) for rank, token in enumerate([*cuts, EOS_ID][:count])]


def forced_requests() -> list[Request]:
    return [Request(f"f{i}", random_prompt(3 + 5 * i, seed=300 + i), params) for i, params in enumerate(KINDS)]


@cache
def plain() -> dict[str, ReferenceResult]:
    model = tiny_model("llama")
    return {
        request.request_id: reference_decode(
            model,
            request.prompt_ids,
            request.params,
            (EOS_ID,),
            decode=decode,
            language=languages()[0][request.request_id],
        )
        for request in forced_requests()
    }


def decode_and_count(policy: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run the requests; assert that their tokens are plain decoding's and that no verified node was forbidden."""
    counted: Counter[str] = Counter()
    right = decode_module.tree_segment

    def checked(request: Request, tree: DraftTree) -> Segment:
        language = languages()[0][request.request_id]
        for node in range(len(tree)):
            path = (*request.output_ids, *tree.path(node))
            assert may_follow(language, request.params, path), (request.request_id, path, "a forbidden node")
            counted["verified in forced text"] += language.forced_token(path[:-1]) is not None
        return right(request, tree)

    monkeypatch.setattr(decode_module, "tree_segment", checked)
    drafter = CutsDrafter({name: result.output_ids for name, result in plain().items()}, (1.0,), VOCAB_SIZE)
    drafter.max_children = 8
    loop = tiny_loop(grammar_target(), drafter, policy=policy, branching=8, max_depth=6, k_max=60)
    requests = forced_requests()
    assert_plain(loop, requests, plain())
    counted["accepted"] = sum(request.stats.num_accepted for request in requests)
    return counted


def may_follow(language: Language, params: SamplingParams, path: tuple[int, ...]) -> bool:
    is_end = path[-1] in params.ends_with((EOS_ID,)) and language.holds(path[:-1])
    return language.begins(path) or is_end


@pytest.mark.parametrize("policy", ["static", "dynamic", "echo"])
def test_no_other_cut_of_forced_text_is_verified(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = decode_and_count(policy, monkeypatch)
    assert counted["verified in forced text"] > 50 and counted["accepted"] > 50, counted


def test_forced_text_comes_up_and_could_have_been_cut_otherwise() -> None:
    """So the tests above are about something."""
    forced = others = 0
    for name, result in plain().items():
        strict, loose = (found[name] for found in languages())
        for end in range(1, len(result.output_ids)):
            output = tuple(result.output_ids[:end])
            if strict.forced_token(output) is not None:
                forced += 1
                others += sum(loose.begins([*output, token]) for token in range(VOCAB_SIZE)) - 1
    assert forced > 40 and others > 20, (forced, others)


def test_verifying_any_cut_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scout, "_forced", property(lambda _: None))
    with pytest.raises(AssertionError, match="a forbidden node"):
        decode_and_count("static", monkeypatch)
