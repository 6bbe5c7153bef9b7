"""The check at load: does this model, packed, compute what it computes alone?

Support cannot be inferred from a model's code: some never call the attention function, some drop its keyword arguments,
some add terms it does not see. So 24 packed rows (two sequences, then their trees with a rejected sibling) are compared
with the model's own attention; in exact numerics the rows must moreover be bitwise equal however they are packed.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from echo_sched.engine.forward import Target
from echo_sched.errors import ModelError
from echo_sched.tree import Segment, ancestor_mask, pack

# Largest root-mean-square difference of logits, relative to theirs, that rounding explains.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2}

_PROMPT_LENGTHS = (8, 7)
# Rows of each tree: offsets of the parents. Row 0 is the root; in the first, rows 1 and 2 are siblings.
_TREES = ((-1, 0, 0, 1, 2), (-1, 0, 1, 0))


class _Case(NamedTuple):
    prompt: list[int]
    tree: list[int]
    parents: tuple[int, ...]

    def paths(self) -> list[list[int]]:
        """Row offsets from the root to each leaf."""
        leaves = set(range(len(self.tree))) - set(self.parents)
        return [[row for row, seen in enumerate(ancestor_mask(self.parents)[leaf]) if seen] for leaf in sorted(leaves)]


def probe(target: Target) -> None:
    """Raises ModelError when the packed engine and the model disagree."""
    name = target.model.config.model_type
    cases = _cases(target.facts.vocab_size)
    for case, packed in zip(cases, _packed(target, cases), strict=True):
        for path in case.paths():
            tokens = [case.tree[row] for row in path]
            expected = _plain(target, case.prompt, tokens).double()
            error = (packed[path].double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
            if not error <= TOLERANCE[target.facts.dtype]:
                raise ModelError(
                    f"{name} cannot be served: packed logits differ from the model's own by {error:.1e} (relative)"
                )
            if target.numerics == "exact" and not torch.equal(packed[path], _alone(target, case.prompt, tokens)):
                raise ModelError(
                    f"exact numerics cannot be promised for {name} in {target.facts.dtype} on this machine: "
                    "its kernels round a row differently alone and in a batch; use --numerics fast"
                )


def _cases(vocab_size: int) -> list[_Case]:
    """Two sequences of tokens spread over the vocabulary."""
    stride = max(1, (vocab_size - 1) // 64)
    ids = iter([stride * (i + 1) % vocab_size for i in range(64)])
    return [
        _Case([next(ids) for _ in range(length)], [next(ids) for _ in parents], parents)
        for length, parents in zip(_PROMPT_LENGTHS, _TREES, strict=True)
    ]


def _packed(target: Target, cases: list[_Case]) -> Sequence[Tensor]:
    """Logits of every tree row, all sequences together: the prompts in one forward, the trees in the next."""
    slots = [target.kv.allocate() for _ in cases]
    target.forward(pack([_chain(slot, 0, case.prompt) for slot, case in zip(slots, cases, strict=True)]))
    target.kv.commit([(slot, range(len(case.prompt))) for slot, case in zip(slots, cases, strict=True)])
    segments = [
        Segment(slot, len(case.prompt), case.tree, case.parents, len(case.tree))
        for slot, case in zip(slots, cases, strict=True)
    ]
    tree = pack(segments)
    logits = target.forward(tree)
    for slot in slots:
        target.kv.free(slot)
    starts = tree.logit_start.tolist()
    return [logits[low:high] for low, high in pairwise(starts)]


def _alone(target: Target, prompt: list[int], path: list[int]) -> Tensor:
    """[len(path), vocab] as plain decoding has them: one sequence, its prompt in two chunks, then token by token."""
    slot = target.kv.allocate()
    rows = []
    for chunk in (prompt[:3], prompt[3:], *([token] for token in path)):
        rows.append(target.forward(pack([_chain(slot, target.kv.length(slot), chunk)]))[-1])
        target.kv.commit([(slot, range(len(chunk)))])
    target.kv.free(slot)
    return torch.stack(rows[-len(path) :])


@torch.inference_mode()
def _plain(target: Target, prompt: list[int], path: list[int]) -> Tensor:
    """[len(path), vocab] from the model's own attention over the whole sequence."""
    with target.plain_attention() as model:
        ids = torch.tensor([prompt + path], device=target.device)
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0, -len(path) :]
    return logits


def _chain(slot: int, base_len: int, tokens: list[int]) -> Segment:
    return Segment(slot, base_len, tokens, range(-1, len(tokens) - 1), 1)
