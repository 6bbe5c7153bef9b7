"""Heads on disk: both public layouts, what the layer ids mean in each, and every mismatch by its name."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from echo_sched.engine.draft import check_drafter
from echo_sched.engine.draft.eagle3 import TargetShape, load_head, save_head
from echo_sched.engine.draft.eagle3.checkpoint import fingerprint
from echo_sched.errors import ConfigError, ModelError
from tests.tiny_heads import (
    DRAFT_VOCAB_SIZE,
    LAYER,
    NUM_TARGET_LAYERS,
    ORIGINAL,
    SPECULATORS,
    TARGET_SIZE,
    Tensors,
    head_tensors,
    write_head,
)
from tests.tiny_models import VOCAB_SIZE

SHAPE = TargetShape(NUM_TARGET_LAYERS, TARGET_SIZE, VOCAB_SIZE)
DEEP = TargetShape(30, TARGET_SIZE, VOCAB_SIZE)
IDS = "eagle_aux_hidden_state_layer_ids"


def without_ids(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != IDS}


@pytest.mark.parametrize("config", [ORIGINAL, SPECULATORS], ids=["original", "speculators"])
@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
def test_both_layouts_give_the_same_head(config: dict[str, Any], pickled: bool, tmp_path: Path) -> None:
    tensors = head_tensors(config)
    head = load_head(write_head(tmp_path, config, tensors, pickled=pickled), SHAPE, dtype=torch.float64)
    assert {name: t.tolist() for name, t in head.state_dict().items()} == {
        name: t.tolist() for name, t in tensors.items() if name != "t2d"
    }
    assert head.config.norm_before_residual == (config is SPECULATORS)
    assert head.target_ids.tolist() == tensors["t2d"].nonzero().flatten().tolist()
    assert not head.training and not any(p.requires_grad for p in head.parameters())


@pytest.mark.parametrize(
    ("told", "layers"),
    [
        ({IDS: [2, 15, 20]}, (2, 15, 20)),
        ({"eagle_config": {IDS: [1, 14, 26]}}, (2, 15, 27)),
        ({IDS: [3, 4, 5], "eagle_config": {IDS: [9, 9, 9]}}, (3, 4, 5)),
    ],
    ids=["indices", "numbers of layers", "indices first"],
)
def test_layer_ids_mean_what_their_place_says(told: dict[str, Any], layers: tuple[int, ...], tmp_path: Path) -> None:
    head = load_head(write_head(tmp_path, without_ids(ORIGINAL) | told, head_tensors(ORIGINAL)), DEEP)
    assert head.config.aux_layers == layers


@pytest.mark.parametrize(("num_aux", "guess"), [(3, (2, 15, 27)), (1, (30,)), (0, (30,))])
def test_absent_layer_ids_are_guessed_aloud(
    num_aux: int, guess: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = without_ids(ORIGINAL)
    folder = write_head(tmp_path, config, head_tensors(config, num_aux=num_aux))
    assert load_head(folder, DEEP).config.aux_layers == guess
    assert "--draft-aux-layers" in caplog.text
    caplog.clear()
    override = tuple(range(4, 4 + max(num_aux, 1)))
    assert load_head(folder, DEEP, aux_layers=override).config.aux_layers == override
    assert not caplog.text


def test_the_final_state_alone_may_be_asked_for_by_flag(tmp_path: Path) -> None:
    config = without_ids(ORIGINAL) | {"eagle_config": {"use_aux_hidden_state": False}}
    head = load_head(write_head(tmp_path, config, head_tensors(config, num_aux=0)), DEEP)
    features = torch.randn(2, TARGET_SIZE)
    assert head.config.aux_layers == (30,) and torch.equal(head.fuse(features), features)


def test_without_d2t_the_vocabularies_are_one(tmp_path: Path) -> None:
    config = ORIGINAL | {"draft_vocab_size": VOCAB_SIZE}
    tensors = head_tensors(config)
    del tensors["d2t"], tensors["t2d"]
    assert load_head(write_head(tmp_path, config, tensors), SHAPE).target_ids.tolist() == list(range(VOCAB_SIZE))


def test_rotary_scaling_is_read_in_either_spelling(tmp_path: Path) -> None:
    scaling = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = {"rope_scaling": scaling | {"type": "llama3"}}
    new = {"rope_parameters": scaling | {"rope_type": "llama3", "rope_theta": 500.0}}
    heads = [
        load_head(write_head(tmp_path / str(i), ORIGINAL | extra, head_tensors(ORIGINAL)), SHAPE)
        for i, extra in enumerate(({}, old, new))
    ]
    plain, *scaled = [head.midlayer.self_attn._frequencies for head in heads]
    assert torch.equal(*scaled) and not torch.equal(plain, scaled[0])


def drop(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: tensor})


def nothing(tensors: Tensors) -> None:
    """The config alone is wrong."""


@pytest.mark.parametrize(
    ("config", "spoil", "reason"),
    [
        ({"hidden_size": 40, "target_hidden_size": 40}, nothing, "hidden size 40; this one has 48"),
        ({"hidden_size": 40, "target_hidden_size": 48}, nothing, "no embed_tokens"),
        ({"vocab_size": 150}, nothing, "vocabulary 150; this one has 160"),
        ({"num_hidden_layers": 2}, nothing, "2 layers"),
        ({"intermediate_size": None}, nothing, "positive intermediate_size"),
        ({"hidden_act": "warp"}, nothing, "hidden_act 'warp'"),
        ({"fc_norm": True}, nothing, "fc_norm"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, nothing, "dynamic"),
        ({IDS: [1, 2]}, nothing, "reads 3 hidden states of the target, but 2 are named"),
        ({IDS: [1, 2, 4]}, nothing, "no hidden state 4"),
        ({"num_attention_heads": 5}, nothing, r"midlayer.self_attn.\w_proj.weight has shape"),
        ({}, drop("midlayer.hidden_norm.weight"), "lacks midlayer.hidden_norm.weight"),
        ({}, drop("d2t"), "60 draft tokens for 160 tokens of the target and no d2t"),
        ({}, put("midlayer.self_attn.q_norm.weight", torch.ones(8)), "midlayer.self_attn.q_norm.weight, which"),
        ({}, put("fc.weight", torch.ones(48, 100)), "made for another target"),
        ({}, put("embed_tokens.weight", torch.ones(150, 48)), "embed_tokens.weight has shape"),
        ({}, put("d2t", torch.full((DRAFT_VOCAB_SIZE,), 150)), "outside the target's vocabulary"),
        ({}, put("d2t", -torch.arange(DRAFT_VOCAB_SIZE)), "must hold offsets"),
        ({}, put("d2t", torch.zeros(DRAFT_VOCAB_SIZE, dtype=torch.int64)), "d2t and t2d disagree"),
    ],
)
def test_every_mismatch_is_named(
    config: dict[str, Any], spoil: Callable[[Tensors], object], reason: str, tmp_path: Path
) -> None:
    tensors = head_tensors(ORIGINAL)
    spoil(tensors)
    folder = write_head(tmp_path, ORIGINAL | config, tensors)
    with pytest.raises(ModelError, match=reason) as caught:
        load_head(folder, SHAPE)
    assert "\n" not in str(caught.value)


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must not run",)


def test_unreadable_files_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(folder: Path) -> str:
        with pytest.raises(ModelError) as caught:
            load_head(folder, SHAPE)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "not JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LAYER))
    assert "not an EAGLE-3 head" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(ORIGINAL))
    assert "neither" in refusal(tmp_path)
    torch.save({"fc.weight": Payload()}, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(tmp_path)
    assert "must not run" not in capsys.readouterr().out
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    assert "model.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("layers", [(1, 2, 3), (2, 15, 27), (5,)])
def test_what_is_saved_is_what_is_read(
    layers: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ORIGINAL | {IDS: list(layers), "norm_before_fc": True}
    head = load_head(write_head(tmp_path / "a", config, head_tensors(config, num_aux=len(layers))), DEEP)
    with caplog.at_level(logging.WARNING):
        save_head(head, tmp_path / "b", num_target_layers=30, dtype=torch.float32)
        again = load_head(tmp_path / "b", DEEP)
    assert not caplog.text
    assert again.config == head.config and fingerprint(again) == fingerprint(head)
    assert all(torch.equal(a, b) for a, b in zip(head.state_dict().values(), again.state_dict().values(), strict=True))
    public = json.loads((tmp_path / "b" / "config.json").read_text())
    if layers == (2, 15, 27):
        assert IDS not in public and "eagle_config" not in public
    else:
        assert public[IDS] == list(layers) and public["eagle_config"][IDS] == [layer - 1 for layer in layers]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["config.json", "model.safetensors"]


def test_the_fingerprint_tells_heads_apart_and_not_precisions(tmp_path: Path) -> None:
    folders = [write_head(tmp_path / str(seed), ORIGINAL, head_tensors(ORIGINAL, seed=seed)) for seed in (0, 1)]
    prints = [
        fingerprint(load_head(f, SHAPE, dtype=dtype)) for f in folders for dtype in (torch.float32, torch.bfloat16)
    ]
    assert prints[0] == prints[1] != prints[2] == prints[3]


def test_settings_of_drafters_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    for name, model, layers, reason in [
        ("ngram", "x", None, "no weights"),
        ("ngram", None, (1,), "no weights"),
        ("eagle3", None, None, "needs --draft-model"),
        ("oracle", None, None, "unknown drafter"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            check_drafter(name, model, layers)
    with pytest.raises(ModelError, match=r"config\.json"):
        check_drafter("eagle3", str(tmp_path), None)
