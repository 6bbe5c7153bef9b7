"""One step's work on the host without a model: what a policy decides, and what the decode loop does around it.

The drafter is made up: below the best frontier node of every request that goes on it offers two children. There is no
target either; the first path of every tree is taken for accepted.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from torch import Tensor

from echo_sched.loop.forbidding import DraftFilter
from echo_sched.loop.grow import grow_trees
from echo_sched.loop.records import StepOutcome, count, step_record
from echo_sched.loop.rows import tree_segment
from echo_sched.scheduler.budget import Allocation
from echo_sched.scheduler.cost import CostTable, DraftingCost
from echo_sched.scheduler.plan import AllocationReport, Feedback, Load
from echo_sched.scheduler.policy import PolicySettings, make_policy
from echo_sched.scheduler.starting_values import built_in_profile
from echo_sched.tree import ROOT, DraftTree, FloatArray, Frontier, IntArray, Offers, pack
from echo_sched.types import Request, SamplingParams

DEPTH, CHILDREN = 4, 2  # eight candidates per request
NODES_PER_REQUEST = 7  # K_max / B: less than is offered, so that there is something to choose
PROMPT_LEN = 64
# Verification that hardly gets dearer, so that every depth is worth its price and all of the work is done.
FLAT_COST = CostTable((1, 100_000), (0,), ((1.0,), (1.001,)), DraftingCost.constant(0.001), {})


class MadeUpDrafter:
    """Two children below the first frontier node of every request; how sure they are differs by request and depth."""

    name = "made up"
    fingerprint: str | None = None
    aux_layers: tuple[int, ...] = ()

    def __init__(self, num_requests: int) -> None:
        self._logp = np.log(np.random.default_rng(0).uniform(0.5, 1.0, (num_requests, CHILDREN)) / [1, 2])

    def offers(self, request: IntArray, node: IntArray, path_logp: FloatArray) -> Offers:
        """Children of the first of each request's frontier nodes; arrays [F]."""
        _, first = np.unique(request, return_index=True)
        request, node = np.repeat(request[first], CHILDREN), np.repeat(node[first], CHILDREN)
        token = np.tile(np.arange(CHILDREN), len(first))
        return Offers(request, node, token, np.repeat(path_logp[first], CHILDREN) + self._logp[request, token])

    def begin(self, request: Request) -> None: ...

    def extend(self, requests: Sequence[Request]) -> None: ...

    def observe(self, committed: Sequence[tuple[Request, int]], features: Tensor) -> None: ...

    def release(self, request: Request) -> None: ...

    def expand(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], frontier: Frontier, max_children: int
    ) -> Offers:
        pairs = zip(frontier.request.tolist(), frontier.node.tolist(), strict=True)
        logps = [0.0 if node == ROOT else trees[request].path_logps[node] for request, node in pairs]
        return self.offers(frontier.request, frontier.node, np.array(logps))


class HostWork:
    """The same step again and again, of `batch_size` requests under one policy."""

    def __init__(self, policy: str, batch_size: int) -> None:
        k_max = NODES_PER_REQUEST * batch_size
        settings = PolicySettings(policy=policy, k_max=k_max, max_depth=DEPTH, branching=CHILDREN)  # type: ignore[arg-type]
        self._policy = make_policy(settings, replace(built_in_profile("eagle3"), cost=FLAT_COST))
        self._drafter = MadeUpDrafter(batch_size)
        self._load = Load(batch_size, 0, 0, batch_size * PROMPT_LEN)
        self._requests = [
            Request(f"r{index}", (1,) * PROMPT_LEN, SamplingParams(max_new_tokens=100), [1], PROMPT_LEN, index)
            for index in range(batch_size)
        ]

    def decide(self) -> tuple[float, AllocationReport]:
        """Seconds of one step's decisions, plan and observe included, and what they came to."""
        offered, start = 0.0, time.perf_counter()
        plan = self._policy.plan(self._load)
        allocation = Allocation(plan, np.full(self._load.num_requests, DEPTH))
        request, node = np.flatnonzero(allocation.active), np.full(self._load.num_requests, ROOT)
        path_logp = np.zeros(self._load.num_requests)
        while not allocation.done and request.size:
            begun = time.perf_counter()
            offers = self._drafter.offers(request, node, path_logp)
            offered += time.perf_counter() - begun
            grant = allocation.grant(offers)
            going = grant.active[grant.offers.request]
            request, node, path_logp = grant.offers.request[going], grant.node[going], grant.offers.path_logp[going]
        allocation.finish()
        report = allocation.report
        self._policy.observe(self._load, Feedback(report, np.minimum(report.num_nodes, 1).tolist()))
        return time.perf_counter() - start - offered, report

    def serve(self) -> dict[str, float]:
        """Seconds of growing (decisions and planting), packing and recording, in one step of the decode loop."""
        seconds = dict.fromkeys(("schedule", "draft", "pack", "records"), 0.0)

        @contextmanager
        def clock(phase: str) -> Iterator[None]:
            start = time.perf_counter()
            yield
            seconds[phase] += time.perf_counter() - start

        requests, plan = self._requests, self._policy.plan(self._load)
        trees, report = grow_trees(
            requests, plan, self._drafter, DraftFilter([]), branching=CHILDREN, eos_ids=frozenset(), clock=clock
        )
        with clock("pack"):
            pack(list(map(tree_segment, requests, trees)))
        with clock("records"):
            accepted = [range(min(1, len(tree))) for tree in trees]
            emitted = [[1] * (len(nodes) + 1) for nodes in accepted]
            outcome = StepOutcome(0, plan, requests, trees, (), accepted, emitted, report, 0)
            count(outcome)
            step_record(outcome, {}, recording=False)
        return {"grow": seconds["schedule"], "pack": seconds["pack"], "records": seconds["records"]}
