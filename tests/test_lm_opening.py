"""From `--drafter lm --draft-model MODEL` to a drafter: what is loaded, and a line for each that does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import PreTokenizer, Whitespace, WhitespaceSplit
from transformers import PreTrainedTokenizerFast, T5Config

from echo_sched.config import EngineConfig
from echo_sched.engine.draft import check_drafter
from echo_sched.engine.draft.lm.drafter import LMDrafter
from echo_sched.errors import ConfigError, ModelError
from echo_sched.loop import DecodeLoop
from echo_sched.types import Request, SamplingParams
from tests.tiny_heads import ORIGINAL, head_tensors, write_head
from tests.tiny_models import VOCAB_SIZE, WORDS, random_prompt, tiny_model

NAMES = ["<unk>", "<end>", *WORDS]


def save_draft(
    folder: Path,
    *,
    names: list[str] = NAMES,
    added: tuple[str, ...] = (),
    cutting: PreTokenizer | None = None,
    num_rows: int = VOCAB_SIZE,
    num_positions: int | None = None,
) -> Path:
    """A tiny model of other weights than the target's, and its tokenizer."""
    words = Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = cutting or WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(added)})
    tokenizer.save_pretrained(folder)
    model = tiny_model("llama", torch.float32, seed=1, vocab_size=num_rows)
    if num_positions is not None:
        model.config.max_position_embeddings = num_positions
    model.save_pretrained(folder)
    return folder


def config(target: Path, draft: object, **settings: Any) -> EngineConfig:
    small = {"max_model_len": 96, "max_batch_size": 2, "k_max": 8, "drafter": "lm", "price": "off"}
    return EngineConfig(model=str(target), draft_model=str(draft), **small | settings)


def decoded(settings: EngineConfig) -> Request:
    """A greedy request, run to its end."""
    loop = DecodeLoop.from_config(settings)
    request = Request("a", random_prompt(9), SamplingParams(max_new_tokens=50, temperature=0.0, ignore_eos=True))
    loop.add(request)
    while loop.has_work:
        loop.step()
    assert isinstance(loop.drafter, LMDrafter)
    loop.drafter.kv.check_integrity({})
    return request


def test_a_draft_model_is_loaded_as_a_target_is_and_everything_names_it(model_folder: Path, tmp_path: Path) -> None:
    draft = save_draft(tmp_path)
    loop = DecodeLoop.from_config(config(model_folder, draft, numerics="exact"))
    drafter = loop.drafter
    assert isinstance(drafter, LMDrafter) and drafter.kv is not loop.target.kv
    assert (drafter.model.numerics, drafter.model.facts.dtype) == ("fast", loop.target.facts.dtype)
    assert (drafter.kv.num_slots, drafter.kv.max_len) == (loop.target.kv.num_slots, loop.target.kv.max_len)
    assert loop.drafter_identity.fingerprint == drafter.model.facts.fingerprint != loop.target.facts.fingerprint
    assert (loop.info()["drafter"], loop.info()["draft_model"]) == ("lm", str(draft))
    assert loop.profile.drafter.name == "lm"


def test_drafting_with_the_target_itself_every_node_is_right(model_folder: Path) -> None:
    request = decoded(config(model_folder, model_folder, policy="static", branching=1))
    assert request.stats.num_accepted == request.stats.num_verified >= 36


def test_a_draft_model_goes_by_every_name_that_a_target_goes_by(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {"target": model_folder, "owner/small": save_draft(tmp_path)}
    monkeypatch.setattr("echo_sched.loop.assembly.resolve_model", lambda name: str(folders[name]))
    loop = DecodeLoop.from_config(config(Path("target"), "owner/small"))
    assert isinstance(loop.drafter, LMDrafter) and loop.drafter.model.facts.path == str(tmp_path)


def test_each_drafter_with_weights_takes_one_entry_in_order(model_folder: Path, tmp_path: Path) -> None:
    draft = save_draft(tmp_path / "draft")
    head = write_head(tmp_path / "head", ORIGINAL, head_tensors(ORIGINAL))
    prints = [
        DecodeLoop.from_config(config(model_folder, words, drafter=name)).drafter_identity.fingerprint
        for name, words in (
            ("lm", draft),
            ("eagle3", head),
            ("lm+ngram+eagle3", f"{draft},{head}"),
            ("eagle3+lm", f"{head},{draft}"),
        )
    ]
    assert prints[2:] == [f"{prints[0]}+{prints[1]}", f"{prints[1]}+{prints[0]}"]


@pytest.mark.parametrize("num_rows", [VOCAB_SIZE - 4, VOCAB_SIZE + 8])
def test_padding_may_differ(num_rows: int, tmp_path: Path) -> None:
    names = NAMES[: VOCAB_SIZE - 8]  # so that eight of the target's rows are padding
    target = save_draft(tmp_path / "target", names=names)
    draft = save_draft(tmp_path / "draft", names=names, num_rows=num_rows)
    loop = DecodeLoop.from_config(config(target, draft))
    assert isinstance(loop.drafter, LMDrafter)
    assert loop.drafter.model.facts.vocab_size == num_rows and loop.vocab_size == VOCAB_SIZE


def test_a_shorter_context_is_served_and_drafted_for_as_far_as_it_goes(model_folder: Path, tmp_path: Path) -> None:
    settings = config(model_folder, save_draft(tmp_path, num_positions=32), policy="static")
    short, plain = decoded(settings), decoded(settings.model_copy(update={"policy": "off"}))
    assert short.output_ids == plain.output_ids
    full = decoded(config(model_folder, save_draft(tmp_path / "long"), policy="static"))
    assert 0 < short.stats.num_verified < full.stats.num_verified


SWAPPED = [*NAMES[:5], NAMES[6], NAMES[5], *NAMES[7:]]


@pytest.mark.parametrize(
    ("making", "complaint"),
    [
        (
            {"names": SWAPPED},
            r"another tokenizer: 'w3' is 5 in the target's and 6 in its own; 'w4' is 6 .* 5 in its own$",
        ),
        ({"names": NAMES[:-1]}, r"another tokenizer: 'w157' is 159 in the target's and no token in its own$"),
        (
            {"added": ("<call>", "<over>", "<out>", "<now>"), "num_rows": 164},
            r"'<call>' is no token in the target's and 160 in its own; '<now>' .*; '<out>' .*; and 1 more$",
        ),
        (
            {"cutting": Whitespace()},
            r"another tokenizer: 'The quick.*' goes on after 14 tokens with its end in the target's",
        ),
        (
            {"num_rows": 157},
            r"the draft model has 157 rows of tokens and the other 160; the difference is more than padding: it holds "
            r"'w155' \(157\); 'w156' \(158\); 'w157' \(159\)$",
        ),
    ],
    ids=["two ids swapped", "a token less", "special tokens more", "cut elsewhere", "rows missing"],
)
def test_another_vocabulary_is_a_line_that_names_the_difference(
    making: dict[str, Any], complaint: str, model_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=complaint) as error:
        DecodeLoop.from_config(config(model_folder, save_draft(tmp_path, **making)))
    assert str(error.value).startswith(f"the draft model {tmp_path}: ") and "\n" not in str(error.value)


def test_special_tokens_are_cut_by_name(model_folder: Path, tmp_path: Path) -> None:
    """Same names and ids, but one tokenizer knows it for a word among others and cuts around it."""
    plain = save_draft(tmp_path / "target", names=[*NAMES, "<call>"], num_rows=161)
    special = save_draft(tmp_path / "draft", names=[*NAMES, "<call>"], added=("<call>",), num_rows=161)
    for target, draft in ((plain, special), (special, plain)):
        with pytest.raises(ModelError, match=r"another tokenizer: .* goes on after"):
            DecodeLoop.from_config(config(target, draft))


def test_what_is_no_model_is_told_before_the_target_is_loaded(tmp_path: Path, model_folder: Path) -> None:
    T5Config().save_pretrained(tmp_path / "t5")
    for folder, complaint in (
        (tmp_path / "t5", "encoder-decoder"),
        (tmp_path / "missing", "cannot read a model config"),
    ):
        with pytest.raises(ModelError, match=f"^the draft model {folder}: .*{complaint}"):
            check_drafter("lm", str(folder), None)
    with pytest.raises(ModelError, match=r"no such model: 'nothing'"):
        DecodeLoop.from_config(config(tmp_path, "nothing"))
    with pytest.raises(ModelError, match=r"not an EAGLE-3 head .*; a whole model drafts with --drafter lm$"):
        check_drafter("eagle3", str(model_folder), None)


def test_a_draft_model_that_does_not_fit_into_memory_is_a_clear_line(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = save_draft(tmp_path)
    monkeypatch.setattr("echo_sched.engine.opening.free_bytes", lambda device: 150_000)  # a cache takes 98,304
    with pytest.raises(ConfigError, match=f"^the draft model {draft}: the KV cache needs"):
        DecodeLoop.from_config(config(model_folder, draft, kv_memory=1e-4))
