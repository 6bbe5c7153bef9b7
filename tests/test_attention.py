"""Packed attention against attention written out densely, one row at a time."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from echo_sched.engine.attention import AttentionPlan, packed_attention
from echo_sched.engine.groups import group_segments
from echo_sched.engine.kv import KVCache, KVShape
from echo_sched.errors import ModelError
from echo_sched.tree import Segment, SuperTree, ancestor_mask, pack

HEADS, KV_HEADS, WIDTH, NUM_SLOTS = 4, 2, 8, 6
CPU = torch.device("cpu")

trees = st.lists(st.integers(0, 10**6), min_size=1, max_size=12).map(
    lambda numbers: [number % row if row else -1 for row, number in enumerate(numbers)]
)
chains = st.integers(1, 40).map(lambda n: list(range(-1, n - 1)))
batches = st.lists(st.tuples(st.one_of(trees, chains), st.integers(0, 30)), min_size=1, max_size=NUM_SLOTS)


class Layer(nn.Module):
    layer_idx = 0


def build(parts: Sequence[tuple[list[int], int]], slots: Sequence[int], seed: int) -> tuple[SuperTree, KVCache]:
    """A packed batch behind random committed KV."""
    torch.manual_seed(seed)
    shape = KVShape(1, KV_HEADS, WIDTH)
    kv = KVCache(shape, num_slots=NUM_SLOTS, max_len=128, dtype=torch.float64, device=CPU)
    for _ in range(NUM_SLOTS):
        kv.allocate()
    for slot, (_, base) in zip(slots, parts, strict=False):
        index = torch.arange(base)
        rows = torch.randn(2, base, KV_HEADS, WIDTH, dtype=torch.float64)
        kv.append(0, torch.full_like(index, slot), index, rows[0], rows[1])
        kv.commit([(slot, range(base))])
    segments = [Segment(s, base, [0] * len(p), p, 1) for s, (p, base) in zip(slots, parts, strict=False)]
    return pack(segments), kv


def dense(
    tree: SuperTree, kv: KVCache, query: Tensor, scale: float, window: int | None, softcap: float | None = None
) -> Tensor:
    """[N, HEADS, WIDTH], by the definition: softmax over the prefix, the ancestors and the row itself."""
    rows = []
    for row in range(tree.num_rows):
        segment = int(tree.segment[row])
        first, base = int(tree.start[segment]), int(tree.base_len[segment])
        seen = ancestor_mask(tree.local_parents(segment))[row - first].nonzero()[0]
        places = [*range(base), *(base + seen)]
        positions = [*range(base), *tree.position[first + seen]]
        near = [p for p, q in zip(places, positions, strict=True) if not window or tree.position[row] - q < window]
        slot = int(tree.slot[segment])
        key, value = (t[0, :, near].repeat_interleave(HEADS // KV_HEADS, 0) for t in kv.view(0, slot, slot + 1, 128))
        scores = (key @ query[:, row, :, None])[..., 0] * scale
        weights = torch.softmax(scores if softcap is None else softcap * torch.tanh(scores / softcap), -1)
        rows.append((weights[:, None] @ value)[:, 0])
    return torch.stack(rows)


@settings(max_examples=60)
@given(
    batches,
    st.permutations(range(NUM_SLOTS)),
    st.booleans(),
    st.sampled_from([None, 1, 5]),
    st.sampled_from([None, 0.5]),
    st.integers(0, 9),
    st.integers(0, 3),
)
def test_packed_equals_dense_whatever_rows_of_nothing_follow(
    parts: list[tuple[list[int], int]],
    slots: list[int],
    exact: bool,
    window: int | None,
    softcap: float | None,
    seed: int,
    num_more: int,
) -> None:
    tree, kv = build(parts, slots, seed)
    num_rows = tree.num_rows
    query = torch.randn(1, HEADS, num_rows + num_more, WIDTH, dtype=torch.float64)
    key, value = torch.randn(2, 1, KV_HEADS, num_rows + num_more, WIDTH, dtype=torch.float64)
    for rows in (query, key, value):
        rows[:, :, num_rows:] = torch.nan
    plan = AttentionPlan(tree, kv, exact=exact, device=CPU)
    form: dict[str, Any] = {"scaling": 0.3, "sliding_window": window, "softcap": softcap}
    out, _ = packed_attention(Layer(), query, key, value, None, echo_plan=plan, **form)
    expected = dense(tree, kv, query[0], 0.3, window, softcap)
    assert out.shape == (1, num_rows + num_more, HEADS, WIDTH)
    torch.testing.assert_close(out[0, :num_rows], expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=30)
@given(batches, st.permutations(range(NUM_SLOTS)), st.sampled_from([None, 1, 5]), st.data())
def test_a_tree_computed_in_two_forwards_equals_one(
    parts: list[tuple[list[int], int]], slots: list[int], window: int | None, data: st.DataObject
) -> None:
    """The second forward's rows see their ancestors among the first's, which wait in the slot and are not committed."""
    tree, kv = build(parts, slots, 0)
    query = torch.randn(1, HEADS, tree.num_rows, WIDTH, dtype=torch.float64)
    key, value = torch.randn(2, 1, KV_HEADS, tree.num_rows, WIDTH, dtype=torch.float64)
    expected = dense_after(tree, kv, query, key, value, window)
    tails = [parents[: data.draw(st.integers(0, len(parents) - 1))] for parents, _ in parts]
    out = torch.full_like(expected, float("nan"))
    for early in (True, False):
        segments, rows = [], []
        for slot, (parents, base), tail, first in zip(slots, parts, tails, tree.start.tolist(), strict=False):
            cut = len(tail)
            parents, low, high = (tail, 0, cut) if early else (parents[cut:], cut, cut + len(parents[cut:]))
            if high > low:
                segments.append(Segment(slot, base, [0] * (high - low), parents, 0, tail=[] if early else tail))
                rows += range(first + low, first + high)
        if segments:
            plan = AttentionPlan(pack(segments), kv, exact=False, device=CPU)
            part = (t[:, :, rows] for t in (query, key, value))
            out[rows] = packed_attention(Layer(), *part, None, scaling=0.3, sliding_window=window, echo_plan=plan)[0][0]
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


def dense_after(tree: SuperTree, kv: KVCache, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    """`dense` with the rows' keys and values in the cache, which holds junk in their places afterwards."""
    plan = AttentionPlan(tree, kv, exact=False, device=CPU)
    key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)
    kv.append(0, plan.slot, plan.index, key, value)
    expected = dense(tree, kv, query[0], 0.3, window)
    kv.append(0, plan.slot, plan.index, torch.full_like(key, 9.0), torch.full_like(value, 9.0))
    return expected


@pytest.mark.parametrize(("folds", "kv_heads", "width"), [(1, 12, 4), (3, 2, 8), (1, 3, 16), (3, 1, 64)])
def test_exact_attention_is_bitwise_the_same_row_by_row(folds: int, kv_heads: int, width: int) -> None:
    """In float64, where nothing is rounded away: chains behind contexts of many lengths, together and one row each."""
    torch.manual_seed(0)
    lengths, counts = (0, 3, 60, 100, 190, 300), (1, 5, 9, 17, 40, 3)
    kv = KVCache(KVShape(1, kv_heads, width), num_slots=NUM_SLOTS, max_len=384, dtype=torch.float64, device=CPU)
    for layer in kv.view(0, 0, NUM_SLOTS, 384):
        layer.normal_()
    rows = sum(counts)
    query = torch.randn(1, kv_heads * folds, rows, width, dtype=torch.float64)
    key, value = torch.randn(2, 1, kv_heads, rows, width, dtype=torch.float64)

    def attend(segments: list[Segment], low: int, high: int) -> Tensor:
        plan = AttentionPlan(pack(segments), kv, exact=True, device=CPU)
        part = (t[:, :, low:high] for t in (query, key, value))
        return packed_attention(Layer(), *part, None, softcap=20.0, echo_plan=plan)[0][0]

    chains = [(n, range(-1, n - 1)) for n in counts]
    segments = [Segment(slot, lengths[slot], [0] * n, chain, 1) for slot, (n, chain) in enumerate(chains)]
    together = attend(segments, 0, rows)
    row = 0
    for slot, count in enumerate(counts):
        for index in range(count):
            assert torch.equal(
                attend([Segment(slot, lengths[slot] + index, [0], [-1], 1)], row, row + 1)[0], together[row]
            )
            row += 1


@given(batches, st.permutations(range(NUM_SLOTS)))
def test_groups_hold_every_segment_once_in_disjoint_slot_ranges(
    parts: list[tuple[list[int], int]], slots: list[int]
) -> None:
    tree, _ = build([(parents, 0) for parents, _ in parts], slots, 0)
    groups = group_segments(tree)
    flat = [segment for group in groups for segment in group]
    assert sorted(flat) == list(range(len(parts)))
    assert tree.slot[flat].tolist() == sorted(tree.slot.tolist())


def test_a_long_prompt_chunk_has_a_group_of_its_own() -> None:
    chunk = Segment(3, 0, [0] * 128, range(-1, 127), 1)
    segments = [Segment(s, 200, [0] * 5, [-1, 0, 1, 2, 3], 5) for s in (0, 1, 2, 4, 5)]
    assert [5] in group_segments(pack([*segments, chunk]))


@pytest.mark.parametrize("extra", [{"position_bias": torch.zeros(1)}, {"s_aux": torch.zeros(1)}, {"dropout": 0.1}])
def test_arguments_that_change_the_maths_are_refused(extra: dict[str, object]) -> None:
    tree, kv = build([([-1], 3)], [0], 0)
    rows = torch.zeros(1, KV_HEADS, 1, WIDTH, dtype=torch.float64)
    plan = AttentionPlan(tree, kv, exact=False, device=CPU)
    with pytest.raises(ModelError, match="not supported"):
        packed_attention(Layer(), rows, rows, rows, None, echo_plan=plan, **extra)  # type: ignore[arg-type]
