"""What happens to a row of logits before the temperature: penalties, bias, and tokens that are ruled out.

    tokens of prompt or output    x / repetition_penalty where x > 0, else x * repetition_penalty
    tokens of the output          x - frequency_penalty * count, then - presence_penalty
    tokens with a bias            x + bias
    tokens ruled out              -inf: not allowed, bad, an end before min_new_tokens are out, or not in the grammar

In this order, in float64. A row's result is a pure function of (row, params, tokens so far); what else is in the batch
never matters. Only the few logits that change travel to the host, for all rows of a batch at once.

Knows rows, counts and params, and nothing of trees: whoever draws a token pushes it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from echo_sched.engine.grammar import Grammar
from echo_sched.tree import BoolArray, FloatArray, IntArray
from echo_sched.types import SamplingParams


class Entries(NamedTuple):
    """Logits of one row that may change. Arrays [n]; ids are distinct."""

    ids: IntArray
    seen: BoolArray  # in the prompt or the output
    counts: FloatArray  # times in the output
    bias: FloatArray  # what is added; -inf where the token is ruled out


class History:
    """One request's tokens so far, as its processors need them: kept up to date by `push`, never counted again.

    One line per token id whose logit may change; lines never move, tokens that turn up later get the next ones:

        [0, a) ids that the params name, and the prompt's if a penalty counts them    [a, size) other output tokens
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        eos_ids: Iterable[int],
        grammar: Grammar | None = None,
    ) -> None:
        self.params = params
        self.grammar = grammar
        self.num_output = 0
        bad, bias = set(params.bad_token_ids), dict(params.logit_bias)
        seen = set(prompt_ids) if params.repetition_penalty != 1.0 else set()
        ends = params.ends_with(eos_ids) if params.min_new_tokens else frozenset()
        if params.allowed_token_ids is None:
            ids = sorted(seen | bias.keys() | bad | ends)
        else:  # all others are -inf whatever happens
            ids = sorted(set(params.allowed_token_ids) - bad)
        self._line = {token: line for line, token in enumerate(ids)}
        new = np.zeros(params.max_new_tokens if params.penalises else 0)
        self._ids = np.append(ids, new).astype(np.int64)
        self._seen = np.append([token in seen for token in ids], new).astype(np.bool_)
        self._counts = np.zeros(self._ids.size)
        self._bias = np.append([-np.inf if token in bad else bias.get(token, 0.0) for token in ids], new)
        self._ends = np.append([token in ends for token in ids], new).astype(np.bool_)

    def push(self, token: int) -> None:
        """The next token of the output."""
        self.num_output += 1
        if self.grammar is not None:
            self.grammar.push(token)
        if not self.params.penalises:
            return
        if self.params.allowed_token_ids is None:
            self._ids[self._line.setdefault(token, len(self._line))] = token
        if token in self._line:
            self._seen[self._line[token]] = True
            self._counts[self._line[token]] += 1.0

    @property
    def active(self) -> bool:
        """Whether `process` would change any logit of the next token."""
        params = self.params
        lasting = params.penalises or params.logit_bias or params.bad_token_ids or params.allowed_token_ids is not None
        return self.grammar is not None or (bool(self._line) and (bool(lasting) or self._is_early))

    @property
    def entries(self) -> Entries:
        size = len(self._line)
        bias = self._bias[:size]
        if self._is_early:  # an end would come before min_new_tokens are out
            bias = np.where(self._ends[:size], -np.inf, bias)
        return Entries(self._ids[:size], self._seen[:size], self._counts[:size], bias)

    @property
    def _is_early(self) -> bool:
        return self.num_output < self.params.min_new_tokens


def make_history(
    params: SamplingParams, prompt_ids: Sequence[int], eos_ids: Iterable[int], grammar: Grammar | None = None
) -> History | None:
    """None where the params leave the logits alone. `grammar` is what `params.grammar` asks for, at its beginning."""
    return History(params, prompt_ids, eos_ids, grammar) if params.processes_logits else None


def process(rows: Tensor, histories: Sequence[History]) -> Tensor:
    """Logits [R, V] as the model gave them -> what the temperature acts on, float64 [R, V], a new tensor."""
    num_rows, vocab_size = rows.shape
    assert num_rows == len(histories), "one history per row"
    parts = [history.entries for history in histories]
    offsets = range(0, num_rows * vocab_size, vocab_size)
    flat = np.concatenate([part.ids + offset for part, offset in zip(parts, offsets, strict=True)])
    places = torch.from_numpy(flat).to(rows.device)
    before = rows.reshape(-1)[places].double().cpu().numpy()
    after = _edit(before, parts, [history.params for history in histories])
    result = rows.to(torch.float64, copy=True)
    confined = [row for row, history in enumerate(histories) if history.params.allowed_token_ids is not None]
    if confined:
        result[confined] = -torch.inf
    result.view(-1)[places] = torch.from_numpy(after).to(rows.device)
    for row, history in enumerate(histories):
        if history.grammar is not None:
            result[row, torch.from_numpy(~history.grammar.allowed).to(rows.device)] = -torch.inf
    return result


def _edit(logits: FloatArray, parts: Sequence[Entries], params: Sequence[SamplingParams]) -> FloatArray:
    """The entries' logits [n], those of all rows end to end, after penalties and bias."""
    sizes = [len(part.ids) for part in parts]
    repetition, frequency, presence = (
        np.repeat([getattr(param, name) for param in params], sizes)
        for name in ("repetition_penalty", "frequency_penalty", "presence_penalty")
    )
    seen = np.concatenate([part.seen for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    # A tiny penalty may overflow, and logits that were not finite stay so: whoever draws sees it.
    with np.errstate(over="ignore", invalid="ignore"):
        repeated = np.where(logits > 0.0, logits / repetition, logits * repetition)
        edited = np.where(seen, repeated, logits)
        edited = edited - frequency * counts - presence * (counts > 0.0)
        return np.asarray(edited + np.concatenate([part.bias for part in parts]))
