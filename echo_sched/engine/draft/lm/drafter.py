"""The lm drafter: a smaller causal LM reads every request's tokens and grows trees, one packed forward per level.

One slot of its own KV per request; L is the number of the request's tokens that were fed so far:

    [0, L)  tokens of the request    [L, ...)  rows of the last tree

The last committed token is fed by `extend`, and what the model says after it is what it offers below the root. A tree's
rows were computed from true tokens, unlike EAGLE-3's, so `extend` moves those that lie on the accepted path behind the
prefix and feeds only what is left: at least one token. It finds them by their tokens, so it need not be told what was
accepted, and steps without drafting change nothing: whatever is not a committed token is fed over.

A request is offered nothing while it is behind, where the model's context ends, and below a token that the model has no
row for. Knows no budget, gate or acceptance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from echo_sched.engine.draft.children import offer_children
from echo_sched.engine.forward import Target
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers, Segment, pack
from echo_sched.types import Request

# Committed tokens per step. A row costs a tenth to a third of a target's row, so this weighs about as much as one
# prompt chunk; whoever is further behind catches up over several steps and drafts nothing until then.
MAX_EXTEND_ROWS = 512


@dataclass
class _Draft:
    """What is known of one request. Rows are counted behind its tokens, for which -1 stands."""

    slot: int
    logits: dict[int, Tensor] = field(default_factory=dict)  # node (or ROOT) -> [shared] about the token after it
    row: dict[int, int] = field(default_factory=dict)  # node (or ROOT) -> its row
    tail: list[int] = field(default_factory=list)  # [rows] their parents
    child: dict[tuple[int, int], int] = field(default_factory=dict)  # (row, token) -> the row of this child


class LMDrafter:
    """The Drafter of one model. Both models know the token ids below `shared`; others are never fed nor offered."""

    name = "lm"
    aux_layers: tuple[int, ...] = ()

    def __init__(
        self, model: Target, shared: int, *, coupled: bool = False, max_extend_rows: int = MAX_EXTEND_ROWS
    ) -> None:
        self.model = model
        self.kv = model.kv
        self.fingerprint: str | None = model.facts.fingerprint
        self._shared = shared
        self._max_len = model.facts.max_model_len
        self._coupled = coupled
        self._max_extend_rows = max_extend_rows
        self._drafts: dict[str, _Draft] = {}

    def begin(self, request: Request) -> None:
        if request.params.speculation:
            self._drafts[request.request_id] = _Draft(self.kv.allocate())

    def release(self, request: Request) -> None:
        draft = self._drafts.pop(request.request_id, None)
        if draft is not None:
            self.kv.free(draft.slot)

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None:
        """Features say nothing to it."""

    def extend(self, requests: Sequence[Request]) -> None:
        """Keep the KV of what was accepted, and feed the other committed tokens in one forward.

        The fewest first, so that nobody waits for one who is far behind.
        """
        drafts = [(request, self._drafts[request.request_id]) for request in requests]
        self.kv.commit([(draft.slot, self._accepted(request, draft)) for request, draft in drafts])
        behind = []
        for request, draft in drafts:
            draft.row, draft.tail, draft.child = {ROOT: -1}, [], {}
            tokens = self._missing(request, draft)
            draft.logits = {} if tokens else {ROOT: draft.logits[ROOT]}
            if tokens and request.num_tokens <= self._max_len and max(tokens) < self._shared:
                behind.append((draft, tokens))
        self._feed(sorted(behind, key=lambda pair: len(pair[1])))

    def _missing(self, request: Request, draft: _Draft) -> list[int]:
        return request.tokens_from(self.kv.length(draft.slot))

    def _accepted(self, request: Request, draft: _Draft) -> list[int]:
        """Rows of the last tree that are committed tokens by now; never of the very last one, which is to be fed."""
        row, rows = -1, []
        for token in self._missing(request, draft)[:-1]:
            if (row, token) not in draft.child:
                break
            row = draft.child[row, token]
            rows.append(row)
        return rows

    def _feed(self, behind: Sequence[tuple[_Draft, list[int]]]) -> None:
        """Run the model over as many of these tokens as a step may have, in this order, and keep their KV."""
        room, segments, finished = self._max_extend_rows, [], []
        for draft, tokens in behind:
            count = min(len(tokens), room)
            room -= count
            if count:
                whole = count == len(tokens)
                first = self.kv.length(draft.slot)
                segments.append(Segment(draft.slot, first, tokens[:count], range(-1, count - 1), int(whole)))
                finished += [draft] if whole else []
        if segments:
            logits = self._forward(segments)
            self.kv.commit([(segment.slot, range(len(segment.tokens))) for segment in segments])
            for draft, about_next in zip(finished, logits, strict=True):
                draft.logits[ROOT] = about_next

    @torch.inference_mode()
    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        """Children by the model's own probabilities among the shared tokens (children.py).

        One forward computes all nodes but roots. A request or a node that the model has not read, or cannot, gets none.
        """
        drafts = [self._drafts.get(request.request_id) for request in requests]
        nodes = [
            (index, node, draft)
            for index, node in zip(frontier.request.tolist(), frontier.node.tolist(), strict=True)
            if (draft := drafts[index]) is not None and ROOT in draft.logits
        ]
        self._compute(requests, trees, [(index, node, draft) for index, node, draft in nodes if node not in draft.row])
        nodes = [(index, node, draft) for index, node, draft in nodes if node in draft.row]
        if not nodes:
            return Offers.empty()
        logits, places = torch.stack([draft.logits[node] for _, node, draft in nodes]), [node[:2] for node in nodes]
        ids = torch.arange(self._shared, device=logits.device)
        return offer_children(requests, trees, places, logits, ids, max_children, coupled=self._coupled)

    def _compute(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], nodes: Sequence[tuple[int, int, _Draft]]
    ) -> None:
        """Run the model over nodes whose parents have been, as far as it can read them."""
        by_request: dict[int, list[int]] = {}
        for index, node, _ in nodes:
            by_request.setdefault(index, []).append(node)
        drafts = {index: draft for index, _, draft in nodes}
        segments, computed = [], []
        for index, members in by_request.items():
            draft, tree = drafts[index], trees[index]
            tail = list(draft.tail)
            read = [node for node in members if self._plant(requests[index], draft, tree, node)]
            if read:
                tokens, parents = [tree.tokens[node] for node in read], draft.tail[len(tail) :]
                first = self.kv.length(draft.slot)
                segments.append(Segment(draft.slot, first, tokens, parents, len(read), tail=tail))
                computed += [(draft, node) for node in read]
        if segments:
            for (draft, node), about_next in zip(computed, self._forward(segments), strict=True):
                draft.logits[node] = about_next

    def _plant(self, request: Request, draft: _Draft, tree: DraftTree, node: int) -> bool:
        """Give the node a row, if the model can read it: another drafter may have proposed it, or one above it."""
        parent, token = tree.parents[node], tree.tokens[node]
        # Growing may be free (the policy `dynamic`), so that a tree has more rows than K_max left places for.
        has_place = self.kv.length(draft.slot) + len(draft.tail) < self.kv.max_len
        in_context = request.num_tokens + tree.depths[node] <= self._max_len
        if parent not in draft.row or token >= self._shared or not in_context or not has_place:
            return False
        draft.row[node] = draft.child[draft.row[parent], token] = len(draft.tail)
        draft.tail.append(draft.row[parent])
        return True

    def _forward(self, segments: Sequence[Segment]) -> Tensor:
        """Logits [R, shared] of the rows that want them."""
        return self.model.forward(pack(segments))[:, : self._shared]
