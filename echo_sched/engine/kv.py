"""The KV cache: one slot per running request, and the only code that knows where a token's keys and values are stored.

One slot, before and after a step that accepted rows 0 and 2 of five:

    [0, length)  committed   [length, length + 5)  the step's rows   ...
    [0, length + 2) committed: row 0 stayed, row 2 moved to where row 1 was

`attention.py` reads through `view`; nobody else touches the storage. Knows nothing of requests, trees or policies.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from echo_sched.errors import ConfigError

GIB = 2**30
DEFAULT_SHARE = 0.5  # of the free memory, when no limit is set
KEY_BLOCK = 64  # slots hold whole blocks of keys: exact attention reads nothing else


class KVShape(NamedTuple):
    """What one token costs: layers x (K, V) x kv_heads x head_dim elements."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize


class KVCache:
    """Slots of `max_len` token places each. Storage: [layers, 2, slots, kv_heads, max_len, head_dim]."""

    def __init__(
        self, shape: KVShape, *, num_slots: int, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_slots = num_slots
        self.max_len = max_len
        self._store = torch.zeros(
            shape.num_layers, 2, num_slots, shape.num_kv_heads, max_len, shape.head_dim, dtype=dtype, device=device
        )
        self._lengths = [0] * num_slots
        self._free = list(range(num_slots))  # a heap: low slots first keeps the batch's slots contiguous
        self._in_use: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_bytes(self) -> int:
        return self._store.numel() * self._store.element_size()

    def allocate(self) -> int:
        """Take the lowest free slot, empty. There must be one."""
        assert self._free, "no free KV slot"
        slot = heapq.heappop(self._free)
        self._in_use.add(slot)
        self._lengths[slot] = 0
        return slot

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._in_use.remove(slot)
        self._lengths[slot] = 0
        heapq.heappush(self._free, slot)

    def clear(self, slot: int) -> None:
        """Overwrite a slot with zeros: masked keys have weight 0, and 0 times infinity would poison its next owner."""
        self._store[:, :, slot] = 0

    def length(self, slot: int) -> int:
        """Committed tokens in the slot."""
        return self._lengths[slot]

    def append(self, layer: int, slot: Tensor, index: Tensor, key: Tensor, value: Tensor) -> None:
        """Write one layer's rows behind the committed part. slot, index: [N]; key, value: [N, kv_heads, head_dim]."""
        self._store[layer, 0, slot, :, index] = key
        self._store[layer, 1, slot, :, index] = value

    def view(self, layer: int, low: int, high: int, length: int) -> tuple[Tensor, Tensor]:
        """K and V of slots [low, high), first `length` places: two views [high - low, kv_heads, length, head_dim]."""
        return self._store[layer, 0, low:high, :, :length], self._store[layer, 1, low:high, :, :length]

    def commit(self, kept: Sequence[tuple[int, Sequence[int]]]) -> int:
        """Keep rows of the last step: (slot, ascending row offsets) each; everything else in the tail is dropped.

        Returns how many tokens had to move.
        """
        slots: list[int] = []
        sources: list[int] = []
        targets: list[int] = []
        for slot, rows in kept:
            assert slot in self._in_use, "commit to a free slot"
            base = self._lengths[slot]
            for target, source in enumerate(rows):
                assert source >= target, "kept rows ascend"
                if source != target:
                    slots.append(slot)
                    sources.append(base + source)
                    targets.append(base + target)
            self._lengths[slot] = base + len(rows)
            assert self._lengths[slot] <= self.max_len, "slot overflow"
        if slots:
            at = torch.tensor([slots, sources, targets], device=self._store.device)
            # Reading all sources before writing any target makes overlapping moves safe.
            self._store[:, :, at[0], :, at[2]] = self._store[:, :, at[0], :, at[1]]
        return len(slots)

    def check_integrity(self, expected: dict[int, int]) -> None:
        """Assert that exactly the expected slots are in use, at the expected lengths, and nothing leaked."""
        assert self._in_use == set(expected), f"slots in use {sorted(self._in_use)}, expected {sorted(expected)}"
        assert sorted(self._free) == sorted(set(range(self.num_slots)) - self._in_use), "free list out of step"
        for slot, length in expected.items():
            assert self._lengths[slot] == length, f"slot {slot}: {self._lengths[slot]} tokens, expected {length}"


def slot_len(max_model_len: int, tail_len: int) -> int:
    """Places of a slot that holds a full request with `tail_len` draft nodes behind it, in whole blocks."""
    return -(-(max_model_len + tail_len) // KEY_BLOCK) * KEY_BLOCK


def fit_slots(
    shape: KVShape, dtype: torch.dtype, *, num_slots: int, max_len: int, free: int, limit_gib: float | None
) -> int:
    """Check that `num_slots` slots of `max_len` tokens fit, and return their bytes.

    Raises ConfigError, naming the nearest settings that fit. `limit_gib` None means DEFAULT_SHARE of the free memory.
    """
    limit = int(free * DEFAULT_SHARE) if limit_gib is None else int(limit_gib * GIB)
    per_slot = shape.bytes_per_token(dtype) * max_len
    need = per_slot * num_slots
    if need > limit or need > free:
        room = min(limit, free)
        nearest = (
            f"{room // per_slot} slots of {max_len} tokens fit"
            if room >= per_slot
            else f"one slot of {room // shape.bytes_per_token(dtype)} tokens fits"
        )
        raise ConfigError(
            f"the KV cache needs {need / GIB:.2f} GiB ({num_slots} slots x {max_len} tokens) but may use "
            f"{room / GIB:.2f} GiB; {nearest}: lower --max-batch-size or --max-model-len, or raise --kv-memory"
        )
    return need
