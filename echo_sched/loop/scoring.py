"""What the target alone says of a sequence, computed on the idle loop at hand."""

from collections.abc import Sequence

from torch import Tensor

from echo_sched.loop.decode import DecodeLoop
from echo_sched.tree import Segment, pack

CHUNK = 512  # tokens per forward


def score(loop: DecodeLoop, token_ids: Sequence[int]) -> Tensor:
    """Logits [vocab] of the token after `token_ids`, plainly computed."""
    target = loop.target
    assert 0 < len(token_ids) <= target.kv.max_len and not loop.has_work
    slot = target.kv.allocate()
    try:
        for start in range(0, len(token_ids), CHUNK):
            chunk = token_ids[start : start + CHUNK]
            logits = target.forward(pack([Segment(slot, start, chunk, range(-1, len(chunk) - 1), 1)]))
            target.kv.commit([(slot, range(len(chunk)))])
    finally:
        target.kv.free(slot)
    return logits[-1]
