"""The KV cache against a model of it in plain lists, over random histories of appends, commits and frees."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echo_sched.engine.kv import GIB, KVCache, KVShape, fit_slots
from echo_sched.errors import ConfigError

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2)


def make_cache(num_slots: int = 3, max_len: int = 40) -> KVCache:
    return KVCache(SHAPE, num_slots=num_slots, max_len=max_len, dtype=torch.float32, device=torch.device("cpu"))


def write(kv: KVCache, slot: int, values: list[float]) -> None:
    """Write one row per value behind the committed part, in every layer; V is minus K."""
    rows = torch.tensor(values)[:, None, None].expand(-1, 1, 2)
    index = torch.arange(kv.length(slot), kv.length(slot) + len(values))
    for layer in range(SHAPE.num_layers):
        kv.append(layer, torch.full_like(index, slot), index, rows + layer, -rows - layer)


def read(kv: KVCache, slot: int) -> list[float]:
    """Committed values of a slot; all layers, K and V must agree."""
    key, _ = kv.view(0, slot, slot + 1, kv.length(slot))
    for layer in range(SHAPE.num_layers):
        k, v = kv.view(layer, slot, slot + 1, kv.length(slot))
        assert torch.equal(k, key + layer) and torch.equal(v, -key - layer)
    return [float(value) for value in key[0, 0, :, 0]]


@settings(max_examples=60)
@given(st.data())
def test_random_histories_keep_exactly_what_was_committed(data: st.DataObject) -> None:
    kv, model, fresh = make_cache(), {}, iter(range(1, 10**6))
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["allocate", "free", "step"]))
        if action == "allocate" and kv.num_free:
            slot = kv.allocate()
            assert slot not in model and slot == min(set(range(3)) - set(model))
            model[slot] = []
        elif action == "free" and model:
            slot = data.draw(st.sampled_from(sorted(model)))
            kv.free(slot)
            del model[slot]
        elif action == "step":
            kept = []
            for slot, tokens in model.items():
                rows = [float(next(fresh)) for _ in range(data.draw(st.integers(0, 5)))]
                if not rows or len(tokens) + len(rows) > kv.max_len:
                    continue
                write(kv, slot, rows)
                keep = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
                kept.append((slot, keep))
                tokens += [rows[row] for row in keep]
            kv.commit(kept)
        kv.check_integrity({slot: len(tokens) for slot, tokens in model.items()})
        for slot, tokens in model.items():
            assert read(kv, slot) == tokens


def test_commit_says_how_many_rows_moved() -> None:
    kv = make_cache()
    slot = kv.allocate()
    write(kv, slot, [1.0, 2.0, 3.0, 4.0])
    assert kv.commit([(slot, [0, 1])]) == 0
    write(kv, slot, [5.0, 6.0, 7.0])
    assert kv.commit([(slot, [0, 2])]) == 1
    assert read(kv, slot) == [1.0, 2.0, 5.0, 7.0]


def test_a_leak_is_found() -> None:
    kv = make_cache()
    kv.allocate()
    with pytest.raises(AssertionError, match="slots in use"):
        kv.check_integrity({})


def test_settings_that_cannot_fit_name_the_nearest_that_does() -> None:
    per_token = KVShape(30, 3, 64).bytes_per_token(torch.bfloat16)
    assert per_token == 23040  # 23 KB per token: SmolLM2 in bfloat16
    shape, free = KVShape(30, 3, 64), 10 * GIB
    assert fit_slots(shape, torch.bfloat16, num_slots=64, max_len=2048, free=free, limit_gib=None) == per_token * 131072
    with pytest.raises(ConfigError, match=r"needs 2\.81 GiB.*22 slots of 2048 tokens fit"):
        fit_slots(shape, torch.bfloat16, num_slots=64, max_len=2048, free=free, limit_gib=1.0)
    with pytest.raises(ConfigError, match=r"one slot of \d+ tokens fits"):
        fit_slots(shape, torch.bfloat16, num_slots=1, max_len=10**6, free=free, limit_gib=1.0)
