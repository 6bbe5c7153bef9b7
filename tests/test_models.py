"""What is served and what is refused, and why: the load rule, the probe, the kernels."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    DeepseekV3Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    JambaConfig,
    LlamaConfig,
    MambaConfig,
    PretrainedConfig,
    T5Config,
    ViTConfig,
)

from echo_sched.engine import kernels, model_config, models
from echo_sched.engine.elementwise import UnsplitActivation, UnsplitRotary, unsplit
from echo_sched.engine.kernels import InvariantFunctions, PackedLinear, PaddedLinear, padded_linear, whole_rows
from echo_sched.engine.memory import resolve_device
from echo_sched.engine.probe import plain_logits, probe
from echo_sched.errors import ConfigError, ModelError
from echo_sched.tree import Segment, pack
from tests.loops import CPU, probe_tiny, target_of, tiny_target
from tests.tiny_models import FAMILIES, GROUPED, MAX_POSITIONS, SEPARATE, VOCAB_SIZE, tiny_model

LATENT = SEPARATE | {
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_the_probe(family: str, dtype: torch.dtype, numerics: str) -> None:
    probe_tiny(family, dtype=dtype, numerics=numerics)


def test_the_probe_finds_attention_that_sees_a_rejected_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every row sees all rows before it, as in a plain causal mask."""
    monkeypatch.setattr(
        "echo_sched.engine.groups.ancestor_mask",
        lambda parents: torch.ones(len(parents), len(parents)).tril().numpy(),
    )
    with pytest.raises(ModelError, match="packed logits differ"):
        probe_tiny("llama", dtype=torch.bfloat16)


def test_the_probe_finds_kernels_that_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a product whose rounding depends on how many rows it has."""
    right = PaddedLinear.forward
    monkeypatch.setattr(PaddedLinear, "forward", lambda self, rows: right(self, rows) * (1 + 1e-15 * rows.shape[-2]))
    with pytest.raises(ModelError, match="exact numerics cannot be promised"):
        probe_tiny("llama", dtype=torch.float64, numerics="exact")


def test_the_probe_finds_experts_that_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted, where no linear layer comes by: routers and experts multiply with weights of their own."""
    right = kernels.padded_linear
    monkeypatch.setattr(
        kernels, "padded_linear", lambda rows, weight: right(rows, weight) * (1 + 1e-6 * rows.shape[-2])
    )
    probe_tiny("llama", dtype=torch.float32, numerics="exact")
    with pytest.raises(ModelError, match=r"exact numerics cannot be promised for qwen3_moe in torch\.float32"):
        probe_tiny("qwen3_moe", dtype=torch.float32, numerics="exact")


def test_products_do_not_depend_on_the_number_of_rows() -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        weight, rows = torch.nn.Parameter(torch.randn(96, 48, dtype=dtype)), torch.randn(64, 48, dtype=dtype)
        for layer in (PackedLinear(weight, None, "exact"), partial(padded_linear, weight=weight)):
            whole = layer(rows)
            for count in (1, 2, 3, 5, 7, 11, 16, 33):
                assert torch.equal(layer(rows[:count]), whole[:count])
                assert torch.equal(layer(rows[-count:]), whole[-count:])
            torch.testing.assert_close(whole, torch.nn.functional.linear(rows, weight), rtol=2e-2, atol=2e-1)


def test_forwards_have_few_row_counts_and_few_rows_of_nothing() -> None:
    counts = set()
    for count in range(1, 513):
        rows = torch.arange(1, count + 1)
        whole = whole_rows(rows)
        assert torch.equal(whole[:count], rows) and not whole[count:].any()
        assert len(whole) <= count * 9 / 8
        counts.add(len(whole))
    assert all(len([n for n in counts if low <= n < 2 * low]) <= 8 for low in (1, 2, 4, 8, 16, 32, 64, 128, 256))


def test_a_forward_asks_no_product_for_another_row_count() -> None:
    target, seen = tiny_target(), set()
    for name, module in target.model.named_modules():
        if name.endswith("_proj") or name == "lm_head":
            module.register_forward_pre_hook(lambda _, args: seen.add(args[0].shape[-2]))
    slot = target.kv.allocate()
    for count in range(1, 80):
        parents = list(range(-1, count - 1))
        logits, features = target.forward_with_features(pack([Segment(slot, 0, [1] * count, parents, count)]), (1,))
        assert len(logits) == count and features is not None and len(features) == count
    assert seen == {len(whole_rows(torch.zeros(count))) for count in range(1, 80)}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "encoder-decoder"),
        (AutoConfig.for_model("llava"), "multimodal"),
        (LlamaConfig(layer_types=["chunked_attention"] * 32), "chunked_attention"),
        (LlamaConfig(num_kv_shared_layers=2), "shares KV"),
        (Gemma3TextConfig(use_bidirectional_attention=True), "both directions"),
        (MambaConfig(), "mamba is recurrent"),
        (JambaConfig(), "jamba is recurrent"),
        (BloomConfig(), "bloom does not route its attention"),  # ALiBi
        (Gemma3Config(), "gemma3 is multimodal"),
        (ViTConfig(), "no causal language model for vit"),
        (GPT2Config(n_positions=0), "no usable max_position_embeddings"),
        (LlamaConfig(vocab_size=0), "no usable vocab_size"),
    ],
)
def test_configs_that_cannot_be_served_are_refused_with_the_reason(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        model_config.check_config(config)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BertConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4), "bert .* logits differ"),
        (GptOssConfig(**GROUPED, num_local_experts=4), "gpt_oss .* uses s_aux"),  # attention sinks
        (DeepseekV3Config(**LATENT), "deepseek_v3 .* keys .* and values"),  # latent attention: K and V differ in width
    ],
)
def test_models_whose_configs_look_harmless_are_refused_by_the_probe(config: PretrainedConfig, reason: str) -> None:
    model_config.check_config(config)
    config.vocab_size, config.bos_token_id, config.eos_token_id, config.pad_token_id = VOCAB_SIZE, None, None, None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with pytest.raises(ModelError, match=reason):
        probe(target_of(model), plain_logits(model))


def test_lengths_that_the_model_cannot_serve_are_refused() -> None:
    short = LlamaConfig(max_position_embeddings=64)
    assert model_config.choose_max_len(short, None) == model_config.choose_max_len(short, 64) == 64
    assert model_config.choose_max_len(LlamaConfig(max_position_embeddings=8192), None) == model_config.DEFAULT_MAX_LEN
    with pytest.raises(ConfigError, match="64 positions of this model"):
        model_config.choose_max_len(short, 128)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    scaled = LlamaConfig(max_position_embeddings=256, rope_parameters=rope)
    assert model_config.choose_max_len(scaled, None) == 64
    with pytest.raises(ConfigError, match="the 64 positions that llama's dynamic rotary scaling leaves alone"):
        model_config.choose_max_len(scaled, 128)


@pytest.mark.parametrize("family", ["phi3", "gemma3"])
def test_rotary_scalings_that_depend_on_the_longest_neighbour_bound_the_length(family: str) -> None:
    """Set once for all layers, or per layer type; the tests of families run below the bound, where they are served."""
    config = tiny_model(family).config
    if family == "gemma3":
        dynamic = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": MAX_POSITIONS // 2}
        config.rope_parameters["full_attention"] |= dynamic
    assert model_config.choose_max_len(config, None) == MAX_POSITIONS // 2
    with pytest.raises(ConfigError, match=r"(dynamic|longrope) rotary scaling leaves alone"):
        model_config.choose_max_len(config, MAX_POSITIONS // 2 + 1)


def damaged(folder: Path, kind: str) -> str:
    """A saved tiny Llama with one thing wrong."""
    tiny_model("llama", torch.float32).save_pretrained(folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    if kind == "truncated weights":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif kind == "a weight is missing":
        tensors = load_file(weights)
        del tensors["model.layers.1.mlp.down_proj.weight"]
        save_file(tensors, weights, metadata={"format": "pt"})
    elif kind == "no weights":
        weights.unlink()
    else:
        config.write_text(config.read_text().replace('"hidden_size": 48', '"hidden_size": "many"'))
    return str(folder)


@pytest.mark.parametrize("kind", ["truncated weights", "a weight is missing", "no weights", "nonsense in the config"])
def test_a_damaged_model_is_one_clear_line(kind: str, tmp_path: Path) -> None:
    path = damaged(tmp_path, kind)
    load = partial(models.load_weights, dtype=torch.float32, device=CPU)
    read = model_config.read_config if kind == "nonsense in the config" else load
    with pytest.raises(ModelError) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "reason"), [("foo", "not a torch device"), ("meta", "can use"), ("cuda:77", ":77")])
def test_a_device_that_torch_cannot_use_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve_device(name)


def test_a_folder_without_a_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read a model config") as caught:
        model_config.read_config(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_the_fingerprint_tells_weights_apart_and_not_precisions() -> None:
    prints = {
        (seed, dtype): models.model_facts("", tiny_model("llama", dtype, seed), dtype, 64).fingerprint
        for seed in (0, 1)
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert prints[0, torch.float32] == prints[0, torch.bfloat16] != prints[1, torch.float32]
    tuned = tiny_model("llama", torch.float32)
    with torch.no_grad():
        tuned.model.layers[1].mlp.down_proj.weight.mul_(1.5)
    assert models.model_facts("", tuned, torch.float32, 64).fingerprint != prints[0, torch.float32]


def test_a_window_that_the_config_does_not_tell_is_refused() -> None:
    """A layer that attends otherwise than its config says would have had another mask from the model."""
    model = tiny_model("mistral")
    target = tiny_target("mistral")
    target.facts = target.facts._replace(windows=(None,) * model.config.num_hidden_layers)
    with pytest.raises(ModelError, match="asks for window 16, its config for None"):
        probe(target, plain_logits(model))


def half_turns(hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A rotary table of odd width."""
    angles = position_ids[..., None] * torch.tensor([1.0, 0.3, 0.1])
    return angles.cos(), angles.sin()


def test_elementwise_functions_round_alike_however_many_rows_and_threads() -> None:
    torch.manual_seed(0)
    rows, activation, table = torch.randn(150, 1536), UnsplitActivation(torch.nn.SiLU()), UnsplitRotary(half_turns)  # type: ignore[arg-type]
    odd, places = torch.randn(150, 1037), torch.arange(150)[None]
    threads = torch.get_num_threads()

    def everything(low: int, high: int) -> list[torch.Tensor]:
        with InvariantFunctions():
            capped = torch.tanh(odd[low:high])
        exps = (unsplit(torch.exp, values[low:high].double()) for values in (rows, odd))
        return [activation(rows[low:high]), capped, *exps, *(part[0] for part in table(rows, places[:, low:high]))]

    try:
        torch.set_num_threads(5)
        whole = everything(0, 150)
        for cut in (7, 40, 99, 106):
            for first, second, both in zip(everything(0, cut), everything(cut, 150), whole, strict=True):
                assert torch.equal(torch.cat([first, second]), both)
    finally:
        torch.set_num_threads(threads)
    plain = [torch.nn.functional.silu(rows), odd.tanh(), rows.double().exp(), odd.double().exp()]
    for ours, expected in zip(whole, [*plain, *(part[0] for part in half_turns(rows, places))], strict=True):
        torch.testing.assert_close(ours, expected)
