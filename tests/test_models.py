"""What is served and what is refused, and why: the load rule, the probe, the kernels."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, BloomConfig, LlamaConfig, PretrainedConfig, T5Config

from echo_sched.engine import models
from echo_sched.engine.kernels import PackedLinear, PaddedLinear
from echo_sched.engine.probe import probe
from echo_sched.errors import ConfigError, ModelError
from tests.loops import tiny_target
from tests.tiny_models import FAMILIES, tiny_model


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_the_probe(family: str, dtype: torch.dtype, numerics: str) -> None:
    probe(tiny_target(family, dtype=dtype, numerics=numerics))  # type: ignore[arg-type]


def test_the_probe_finds_attention_that_sees_a_rejected_sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every row sees all rows before it, as in a plain causal mask."""
    monkeypatch.setattr(
        "echo_sched.engine.attention.ancestor_mask",
        lambda parents: torch.ones(len(parents), len(parents)).tril().numpy(),
    )
    with pytest.raises(ModelError, match="packed logits differ"):
        probe(tiny_target("llama", dtype=torch.bfloat16))


def test_the_probe_finds_kernels_that_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a product whose rounding depends on how many rows it has."""
    right = PaddedLinear.forward
    monkeypatch.setattr(PaddedLinear, "forward", lambda self, rows: right(self, rows) * (1 + 1e-15 * rows.shape[-2]))
    with pytest.raises(ModelError, match="exact numerics cannot be promised"):
        probe(tiny_target("llama", dtype=torch.float64, numerics="exact"))


def test_packed_products_do_not_depend_on_the_number_of_rows() -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        weight, rows = torch.nn.Parameter(torch.randn(96, 48, dtype=dtype)), torch.randn(64, 48, dtype=dtype)
        layer = PackedLinear(weight, None, "exact")
        whole = layer(rows)
        for count in (1, 2, 3, 5, 7, 11, 16, 33):
            assert torch.equal(layer(rows[:count]), whole[:count])
            assert torch.equal(layer(rows[-count:]), whole[-count:])
        torch.testing.assert_close(whole, torch.nn.functional.linear(rows, weight), rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "encoder-decoder"),
        (AutoConfig.for_model("llava"), "multimodal"),
        (LlamaConfig(layer_types=["chunked_attention"] * 32), "chunked_attention"),
        (LlamaConfig(num_kv_shared_layers=2), "shares KV"),
    ],
)
def test_configs_that_cannot_be_served_are_refused_with_the_reason(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        models.check_config(config, 128)


def test_lengths_that_the_model_cannot_serve_are_refused() -> None:
    with pytest.raises(ConfigError, match="64 positions"):
        models.check_config(LlamaConfig(max_position_embeddings=64), 128)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
    with pytest.raises(ConfigError, match="max-model-len 64"):
        models.check_config(LlamaConfig(max_position_embeddings=256, rope_parameters=rope), 128)


def test_a_model_that_never_calls_the_attention_function_is_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = BloomConfig(hidden_size=16, n_layer=1, n_head=2, vocab_size=32)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError):
        models.load_weights(str(tmp_path), torch.float32, torch.device("cpu"))


def test_a_folder_without_a_model_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read a model config") as caught:
        models.read_config(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_the_fingerprint_tells_weights_apart_and_not_precisions() -> None:
    prints = {
        (seed, dtype): models.model_facts("", tiny_model("llama", dtype, seed), dtype).fingerprint
        for seed in (0, 1)
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert prints[0, torch.float32] == prints[0, torch.bfloat16] != prints[1, torch.float32]
