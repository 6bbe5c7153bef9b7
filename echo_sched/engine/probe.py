"""The check at load: does this model, packed, compute what it computes alone?

Support cannot be inferred from a model's code: some never call the attention function, some drop its keyword arguments,
some add terms it does not see. So 24 packed rows (two sequences, then their trees with a rejected sibling) are compared
with the model's own attention; in exact numerics the rows must moreover be bitwise equal however they are packed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo_sched.engine.attention import ATTENTION_NAME
from echo_sched.engine.forward import Target
from echo_sched.engine.models import use_own_attention
from echo_sched.errors import ModelError
from echo_sched.tree import Segment, ancestor_mask, pack

# Largest root-mean-square difference of logits, relative to theirs, that rounding explains.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 5e-2}

# Tokens of the chunk that exact numerics must compute alike whole and in two: long enough for torch to use its threads.
EXACT_CHUNK = 200

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


def plain_logits(model: PreTrainedModel) -> list[Tensor]:
    """What the probe expects: logits [len(path), vocab] of every path, by the model's own attention and kernels."""
    use_own_attention(model)
    expected = []
    with torch.inference_mode():
        for case in _cases(model.get_output_embeddings().weight.shape[0]):
            for path in case.paths():
                ids = torch.tensor([case.prompt + [case.tree[row] for row in path]], device=model.device)
                expected.append(model(input_ids=ids, use_cache=False).logits[0, -len(path) :])
    model.set_attn_implementation(ATTENTION_NAME)
    return expected


def probe(target: Target, expected: Sequence[Tensor]) -> None:
    """Compare with `plain_logits` of the same model. Raises ModelError when packed engine and model disagree."""
    name = target.model.config.model_type
    try:
        packed = _packed_paths(target)
        exact = target.numerics != "exact" or _is_exact(target, packed)
    except ModelError as error:
        raise ModelError(f"{name} cannot be served: {error}") from error
    except (RuntimeError, TypeError, ValueError, IndexError) as error:  # whatever a model does with packed rows
        raise ModelError(f"{name} cannot be served: it fails on packed rows ({str(error).splitlines()[0]})") from error
    for ours, plain in zip(packed, expected, strict=True):
        difference = ours.double() - plain.double()
        error_ratio = float(difference.square().mean().sqrt() / plain.double().square().mean().sqrt())
        if not error_ratio <= TOLERANCE[target.facts.dtype]:
            raise ModelError(
                f"{name} cannot be served: packed logits differ from the model's own by {error_ratio:.1e} (relative)"
            )
    if not exact:
        raise ModelError(
            f"exact numerics cannot be promised for {name} in {target.facts.dtype} on this machine: "
            "its kernels round a row differently alone and in a batch; use --numerics fast"
        )


def _is_exact(target: Target, packed: Sequence[Tensor]) -> bool:
    """Bitwise the same: tree rows alone and packed; a long chunk in one forward and in two."""
    cases = _cases(target.facts.vocab_size)
    paths = [(case.prompt, [case.tree[row] for row in path]) for case in cases for path in case.paths()]
    if not all(torch.equal(ours, _alone(target, *path)) for ours, path in zip(packed, paths, strict=True)):
        return False
    length = min(EXACT_CHUNK, target.kv.max_len)
    ids = [(31 * i + 7) % target.facts.vocab_size for i in range(length)]
    cut = 2 * length // 5
    return all(map(torch.equal, _chunked(target, [ids]), _chunked(target, [ids[:cut], ids[cut:]])))


def _chunked(target: Target, chunks: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
    """Last logits, and the last layer's keys, of a sequence computed in these chunks."""
    slot = target.kv.allocate()
    for chunk in chunks:
        logits = target.forward(pack([_chain(slot, target.kv.length(slot), chunk)]))
        target.kv.commit([(slot, range(len(chunk)))])
    keys, _ = target.kv.view(target.kv.shape.num_layers - 1, slot, slot + 1, target.kv.length(slot))
    keys = keys.clone()
    target.kv.free(slot)
    return logits, keys


def _cases(vocab_size: int) -> list[_Case]:
    """Two sequences of tokens spread over the vocabulary."""
    stride = max(1, (vocab_size - 1) // 64)
    ids = iter([stride * (i + 1) % vocab_size for i in range(64)])
    return [
        _Case([next(ids) for _ in range(length)], [next(ids) for _ in parents], parents)
        for length, parents in zip(_PROMPT_LENGTHS, _TREES, strict=True)
    ]


def _packed_paths(target: Target) -> list[Tensor]:
    """Logits along every path, all sequences together: the prompts in one forward, the trees in the next."""
    cases = _cases(target.facts.vocab_size)
    slots = [target.kv.allocate() for _ in cases]
    target.forward(pack([_chain(slot, 0, case.prompt) for slot, case in zip(slots, cases, strict=True)]))
    target.kv.commit([(slot, range(len(case.prompt))) for slot, case in zip(slots, cases, strict=True)])
    tree = pack(
        [
            Segment(slot, len(case.prompt), case.tree, case.parents, len(case.tree))
            for slot, case in zip(slots, cases, strict=True)
        ]
    )
    logits = target.forward(tree)
    for slot in slots:
        target.kv.free(slot)
    return [logits[low:][path] for low, case in zip(tree.logit_start, cases, strict=False) for path in case.paths()]


def _alone(target: Target, prompt: list[int], path: list[int]) -> Tensor:
    """[len(path), vocab] as plain decoding has them: one sequence, its prompt in two chunks, then token by token."""
    slot = target.kv.allocate()
    rows = []
    for chunk in (prompt[:3], prompt[3:], *([token] for token in path)):
        rows.append(target.forward(pack([_chain(slot, target.kv.length(slot), chunk)]))[-1])
        target.kv.commit([(slot, range(len(chunk)))])
    target.kv.free(slot)
    return torch.stack(rows[-len(path) :])


def _chain(slot: int, base_len: int, tokens: list[int]) -> Segment:
    return Segment(slot, base_len, tokens, range(-1, len(tokens) - 1), 1)
