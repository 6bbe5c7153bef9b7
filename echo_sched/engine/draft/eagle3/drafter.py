"""The EAGLE-3 drafter: follows each request with its own KV, and grows trees one packed forward per level.

One slot per request; P is the number of pairs (feature at position p, token at p + 1) that were fed so far:

    [0, P)  pairs made of true target features    [P, ...)  rows of this step's tree, made of the layer's own outputs

Rows of the tree are never kept: `extend` overwrites them with pairs made of what the target computed in the meantime.
Features wait until then, so that steps without drafting cost memory only. Knows no budget, gate or acceptance.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import embedding

from echo_sched.engine.attention import AttentionPlan, packed_attention
from echo_sched.engine.draft.children import offer_children
from echo_sched.engine.draft.eagle3.checkpoint import fingerprint
from echo_sched.engine.draft.eagle3.head import Eagle3Head
from echo_sched.engine.draft.eagle3.request_draft import Pairs, RequestDraft
from echo_sched.engine.kv import KVCache
from echo_sched.tree import ROOT, DraftTree, Frontier, Offers, Segment, pack
from echo_sched.types import Request

# Pairs per step. A row of the draft layer costs a small part of a target's row, so this weighs about as much as one
# prompt chunk; whoever is further behind catches up over several steps and drafts nothing until then.
MAX_EXTEND_ROWS = 2048
FEW_PAIRS = 16  # of a request, which cost less in the forward that computes its last one than apart from it


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
        self._embeddings = embeddings if head.embed_tokens is None else head.embed_tokens.weight
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
        """Keep the KV of the next `count` pairs of each request. Only of a request's last pair the output is read."""
        if not fed:
            return
        hidden = self.head.fuse(torch.cat([draft.take(count) for _, draft, count in fed]))
        passed, ending = [], []
        num_rows = 0
        for request, draft, count in fed:
            first = self.kv.length(draft.slot)
            tokens, rows = _tokens(request, first + 1, first + 1 + count), range(num_rows, num_rows + count)
            num_passed = count if draft.pending else count - 1 if count > FEW_PAIRS else 0
            passed.append(Pairs(draft.slot, tokens[:num_passed], rows[:num_passed]))
            if not draft.pending:
                ending.append((draft, Pairs(draft.slot, tokens[num_passed:], rows[num_passed:])))
            num_rows += count
        self._pass([pairs for pairs in passed if pairs.tokens], hidden)
        self._end(ending, hidden)

    def _end(self, ending: Sequence[tuple[RequestDraft, Pairs]], hidden: Tensor) -> None:
        """Run the layer over the last pairs of requests that have caught up. `rows` are of hidden [N, hidden]."""
        if not ending:
            return
        segments = [
            Segment(pairs.slot, self.kv.length(pairs.slot), pairs.tokens, range(-1, len(pairs.tokens) - 1), 1)
            for _, pairs in ending
        ]
        at = torch.tensor([row for _, pairs in ending for row in pairs.rows], device=hidden.device)
        outputs, last = self._forward(segments, hidden[at])
        self.kv.commit([(segment.slot, range(len(segment.tokens))) for segment in segments])
        for (draft, _), root in zip(ending, outputs[last], strict=True):
            draft.root = root

    def _pass(self, passed: Sequence[Pairs], hidden: Tensor) -> None:
        """Keep the KV of pairs whose own output nobody reads. `rows` are of hidden [N, hidden]."""
        if not passed:
            return
        token = [token for pairs in passed for token in pairs.tokens]
        slot = [pairs.slot for pairs in passed for _ in pairs.tokens]
        firsts = [self.kv.length(pairs.slot) for pairs in passed]
        position = [first + n for first, pairs in zip(firsts, passed, strict=True) for n in range(len(pairs.tokens))]
        row = [row for pairs in passed for row in pairs.rows]
        at = torch.tensor([token, slot, position, row], device=hidden.device)
        key, value = self.head.key_value(embedding(at[0], self._embeddings)[None], hidden[at[3]][None], at[2][None])
        layer = self.head.midlayer.self_attn.layer_idx
        self.kv.append(layer, at[1], at[2], key[0].transpose(0, 1), value[0].transpose(0, 1))
        self.kv.commit([(pairs.slot, range(len(pairs.tokens))) for pairs in passed])

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
        logits, places = self.head.logits(self._outputs[rows]), [(index, node) for index, node, _ in nodes]
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
        outputs, _ = self._forward(segments, hidden)
        self._outputs = torch.cat([self._outputs, outputs])

    def _forward(self, segments: Sequence[Segment], hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The layer over packed rows with hidden [N, hidden]. Returns outputs [N, hidden] and the rows of logits."""
        packed, device = pack(segments), self._embeddings.device
        plan = AttentionPlan(packed, self.kv, exact=False, device=device)
        attention = partial(_attend, self.head, plan)
        tokens, positions = (torch.from_numpy(rows).to(device) for rows in (packed.token, packed.position))
        outputs = self.head(embedding(tokens, self._embeddings)[None], hidden[None], positions[None], attention)
        return outputs[0], torch.from_numpy(packed.logit_row).to(device)


def _attend(head: Eagle3Head, plan: AttentionPlan, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return packed_attention(head.midlayer.self_attn, query, key, value, None, echo_plan=plan)[0]


def _tokens(request: Request, low: int, high: int) -> list[int]:
    """Tokens [low, high) of prompt + output."""
    split = len(request.prompt_ids)
    return [*request.prompt_ids[low:high], *request.output_ids[max(low - split, 0) : max(high - split, 0)]]
