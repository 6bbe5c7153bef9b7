"""The EAGLE-3 drafter: follows each request with its own KV, and grows trees one packed forward per level.

One slot per request; P is the number of pairs (feature at position p, token at p + 1) that were fed so far:

    [0, P)  pairs made of true target features    [P, ...)  rows of this step's tree, made of the layer's own outputs

Rows of the tree are never kept: `extend` overwrites them with pairs made of what the target computed in the meantime.
Features wait until then, so that steps without drafting cost memory only. Knows no budget, gate or acceptance.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from echo_sched.engine.draft.children import offer_children
from echo_sched.engine.draft.eagle3.checkpoint import fingerprint
from echo_sched.engine.draft.eagle3.head import Eagle3Head
from echo_sched.engine.draft.eagle3.packed_head import PackedHead, Pairs
from echo_sched.engine.draft.eagle3.request_draft import RequestDraft
from echo_sched.engine.kv import KVCache
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers, Segment
from echo_sched.types import Request

# Pairs per step. A row of the draft layer costs a small part of a target's row, so this weighs about as much as one
# prompt chunk; whoever is further behind catches up over several steps and drafts nothing until then.
MAX_EXTEND_ROWS = 2048


class Eagle3Drafter:
    """The Drafter of one head. `embeddings` [vocab, hidden] are the target's, used where the head brings none."""

    name = "eagle3"

    def __init__(
        self,
        head: Eagle3Head,
        embeddings: Tensor,
        kv: KVCache,
        *,
        coupled: bool = False,
        max_extend_rows: int = MAX_EXTEND_ROWS,
    ) -> None:
        self.head = head
        self.kv = kv
        self.fingerprint: str | None = fingerprint(head)
        self.aux_layers = head.config.aux_layers
        own = head.embed_tokens
        self._rows = PackedHead(head, embeddings if own is None else own.weight, kv)
        self._target_ids = head.target_ids
        self._coupled = coupled
        self._max_extend_rows = max_extend_rows
        self._drafts: dict[str, RequestDraft] = {}
        self._outputs = embeddings.new_empty(0, head.config.hidden_size)  # of this step's rows, see RequestDraft.output

    def begin(self, request: Request) -> None:
        if request.params.speculation:
            self._drafts[request.request_id] = RequestDraft(self.kv.allocate())

    def release(self, request: Request) -> None:
        draft = self._drafts.pop(request.request_id, None)
        if draft is not None:
            self.kv.free(draft.slot)

    @torch.inference_mode()
    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None:
        """Keep the features of committed tokens until they are fed. features: [sum of counts, feature_size]."""
        first = 0
        for request, count in committed:
            draft = self._drafts.get(request.request_id)
            if draft is not None:
                # A copy: views would keep the rows of the whole step for as long as one request's wait.
                draft.pending.append(features[first : first + count].clone())
                draft.root = None
            first += count

    @torch.inference_mode()
    def extend(self, requests: Sequence[Request]) -> None:
        """Feed the pending pairs, in one forward. The fewest first, so that nobody waits for one who is far behind."""
        drafts = [self._drafts[request.request_id] for request in requests]
        room = self._max_extend_rows
        counts = {}
        for index in sorted(range(len(drafts)), key=lambda index: drafts[index].num_pending):
            draft = drafts[index]
            draft.output, draft.row, draft.tail = {}, {ROOT: -1}, []  # the last tree's rows are dropped
            counts[index] = min(draft.num_pending, room)
            room -= counts[index]
        self._feed([(requests[index], drafts[index], count) for index, count in counts.items() if count])
        roots: list[Tensor] = []
        for request, draft in zip(requests, drafts, strict=True):
            if draft.root is not None:
                assert self.kv.length(draft.slot) == request.num_tokens - 1, "features are missing"
                draft.output[ROOT] = len(roots)
                roots.append(draft.root)
        self._outputs = torch.stack(roots) if roots else self._outputs[:0]

    def _feed(self, fed: Sequence[tuple[Request, RequestDraft, int]]) -> None:
        """Keep the KV of the next `count` pairs of each request, and the output of its last pair where that is fed."""
        if not fed:
            return
        features = torch.cat([draft.take(count) for _, draft, count in fed])
        firsts = [self.kv.length(draft.slot) + 1 for _, draft, _ in fed]
        pairs = [
            Pairs(draft.slot, _tokens(request, first, first + count))
            for (request, draft, count), first in zip(fed, firsts, strict=True)
        ]
        for (_, draft, _), output in zip(fed, self._rows.feed(pairs, features), strict=True):
            draft.root = None if draft.pending else output

    @torch.inference_mode()
    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        """Children by the head's own probabilities (children.py). One forward computes all frontier nodes but roots.

        A request that has not caught up gets none, nor does a node that found no place in the slot.
        """
        drafts = [self._drafts.get(request.request_id) for request in requests]
        nodes = [
            (index, node, draft)
            for index, node in zip(frontier.request.tolist(), frontier.node.tolist(), strict=True)
            if (draft := drafts[index]) is not None and ROOT in draft.output
        ]
        self._compute(trees, [(index, node, draft) for index, node, draft in nodes if node not in draft.output])
        nodes = [(index, node, draft) for index, node, draft in nodes if node in draft.output]
        if not nodes:
            return Offers.empty()
        rows = torch.tensor([draft.output[node] for _, node, draft in nodes], device=self._outputs.device)
        logits, places = self._rows.logits(self._outputs[rows]), [(index, node) for index, node, _ in nodes]
        return offer_children(requests, trees, places, logits, self._target_ids, max_children, coupled=self._coupled)

    def _compute(self, trees: Sequence[DraftTree], nodes: Sequence[tuple[int, int, RequestDraft]]) -> None:
        """Run the layer over nodes whose parents have been: hidden is the parent's output, the token the node's."""
        by_request: dict[int, list[int]] = {}
        for index, node, _ in nodes:
            by_request.setdefault(index, []).append(node)
        drafts = {index: draft for index, _, draft in nodes}
        segments, sources = [], []
        num_outputs = len(self._outputs)
        for index, members in by_request.items():
            draft, tree, first = drafts[index], trees[index], self.kv.length(drafts[index].slot)
            tail, tokens = list(draft.tail), []
            for node in members:
                parent = tree.parents[node]
                # Growing may be free (the policy `dynamic`), so that a tree has more rows than K_max left places for.
                if parent not in draft.output or first + len(draft.tail) == self.kv.max_len:
                    continue
                sources.append(draft.output[parent])
                draft.row[node] = len(draft.tail)
                draft.tail.append(draft.row[parent])
                draft.output[node] = num_outputs + len(sources) - 1
                tokens.append(tree.tokens[node])
            if tokens:
                segments.append(Segment(draft.slot, first, tokens, draft.tail[len(tail) :], 0, tail=tail))
        if not segments:
            return
        hidden = self._outputs[torch.tensor(sources, device=self._outputs.device)]
        self._outputs = torch.cat([self._outputs, self._rows.extend_trees(segments, hidden)])


def _tokens(request: Request, low: int, high: int) -> list[int]:
    """Tokens [low, high) of prompt + output."""
    split = len(request.prompt_ids)
    return [*request.prompt_ids[low:high], *request.output_ids[max(low - split, 0) : max(high - split, 0)]]
