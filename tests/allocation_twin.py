"""A scripted drafter, a driver for the real Allocation, and its slow twin: the same rules told as plain loops.

The twin shares no code with echo_sched.scheduler.budget and gate; it takes only the plan's fields and the definition of
the random gate's draws from them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from echo_sched.scheduler.budget import Allocation
from echo_sched.scheduler.fairness import FLOOR, REST, TARGET, Fairness
from echo_sched.scheduler.plan import AllocationReport, Grant, Plan
from echo_sched.tree import ROOT, DraftTree, Offers

Path = tuple[int, ...]
Children = Callable[[int, Path], Sequence[tuple[int, float]]]  # (request, path) -> (token, probability) of each child


def scripted(script: dict[int, dict[Path, dict[int, float]]]) -> Children:
    """Children written down: request -> path -> token -> probability."""
    return lambda request, path: list(script.get(request, {}).get(path, {}).items())


def scattered(seed: int, max_children: int = 4) -> Children:
    """Random children that depend only on (seed, request, path). Few distinct values, so that ties abound."""

    def children(request: int, path: Path) -> list[tuple[int, float]]:
        draw = random.Random(hash((seed, request, path)))  # integers only: the same in every process
        count = draw.randint(0, max_children)
        return [(token, draw.choice((0.3, 0.5, 0.5, 0.8, 1.0))) for token in draw.sample(range(6), count)]

    return children


@dataclass
class Outcome:
    """What an allocation came to, in terms that real and twin share."""

    grown: list[tuple[int, Path]] = field(default_factory=list)  # in grant order
    widened: list[tuple[int, Path]] = field(default_factory=list)
    reranked: set[tuple[int, Path]] = field(default_factory=set)  # all that is verified, where the plan reranks
    num_nodes: list[int] = field(default_factory=list)
    num_dropped: list[int] = field(default_factory=list)
    gate_truncated: list[int] = field(default_factory=list)
    budget_truncated: list[int] = field(default_factory=list)
    price_truncated: list[int] = field(default_factory=list)
    frontiers: list[int] = field(default_factory=list)
    deepened: dict[int, int] = field(default_factory=dict)
    num_transferred: int = 0
    num_offered: int = 0
    readings: list[tuple[int, int, float, bool, bool]] = field(default_factory=list)
    # [requests][max_depth] of what is verified, summed: floats, so not compared exactly
    chances: list[list[float]] = field(default_factory=list, compare=False)


@dataclass
class Driven:
    """One step driven through the real Allocation."""

    outcome: Outcome
    trees: list[DraftTree]
    report: AllocationReport


def drive(plan: Plan, caps: Sequence[int], children: Children, shuffle: random.Random | None = None) -> Driven:
    """Grow and widen as the decode loop does; `shuffle` permutes the candidates of every call."""
    allocation = Allocation(plan, np.array(caps, np.int64))
    trees = [DraftTree() for _ in caps]
    outcome = Outcome()
    frontier = [(request, ROOT) for request in np.flatnonzero(allocation.active).tolist()]
    while frontier and not allocation.done:
        grant = allocation.grant(_candidates(trees, frontier, children, shuffle))
        outcome.grown += _plant(grant, trees)
        frontier = [
            (request, node)
            for request, node in zip(grant.offers.request.tolist(), grant.node.tolist(), strict=True)
            if grant.active[request]
        ]
    selection = allocation.finish()
    leaves = _plant(selection.leaves, trees)
    if selection.kept is None:
        outcome.widened = leaves
    else:
        trees = [tree.keep(nodes) for tree, nodes in zip(trees, selection.kept, strict=True)]
        outcome.reranked = {(r, tuple(tree.path(node))) for r, tree in enumerate(trees) for node in range(len(tree))}
    report = allocation.report
    outcome.num_nodes = report.num_nodes.tolist()
    outcome.num_dropped = report.num_dropped.tolist()
    outcome.gate_truncated = report.gate_truncated.tolist()
    outcome.budget_truncated = report.budget_truncated.tolist()
    outcome.price_truncated = report.price_truncated.tolist()
    outcome.frontiers = list(report.frontiers)
    outcome.deepened = report.deepened
    outcome.num_transferred = report.num_transferred
    outcome.num_offered = report.num_offered
    outcome.readings = list(zip(*(column.tolist() for column in report.readings), strict=True))
    outcome.chances = report.chances.tolist()
    return Driven(outcome, trees, report)


def _candidates(
    trees: list[DraftTree], frontier: list[tuple[int, int]], children: Children, shuffle: random.Random | None
) -> Offers:
    rows = [
        (request, node, token, (trees[request].path_logps[node] if node != ROOT else 0.0) + float(np.log(probability)))
        for request, node in frontier
        for token, probability in children(request, tuple(trees[request].path(node)))
    ]
    if shuffle is not None:
        shuffle.shuffle(rows)
    if not rows:
        return Offers.empty()
    request, parent, token, path_logp = zip(*rows, strict=True)
    return Offers(np.array(request), np.array(parent), np.array(token), np.array(path_logp))


def _plant(grant: Grant, trees: list[DraftTree]) -> list[tuple[int, Path]]:
    """Add granted nodes to the trees, checking that they are numbered in grant order."""
    planted = []
    for row in range(grant.offers.size):
        request, parent, token, path_logp = (column[row].item() for column in grant.offers)
        node = trees[request].add(parent, token, path_logp)
        assert node == grant.node[row], "a request's k-th granted node is node k"
        planted.append((request, tuple(trees[request].path(node))))
    return planted


@dataclass(eq=False)
class SlowRequest:
    """One request's tree as a dict from path to S, in node order."""

    index: int
    cap: int
    share: int
    weight: float = 1.0
    nodes: dict[Path, float] = field(default_factory=lambda: dict[Path, float]())
    chances: dict[Path, float] = field(default_factory=lambda: {(): 1.0})
    frontier: list[Path] = field(default_factory=lambda: [()])
    going: bool = True
    gate_truncated: int = 0
    budget_truncated: int = 0
    price_truncated: int = 0
    num_seen: int = 0

    @property
    def gained(self) -> float:
        return sum(self.chances[path] for path in self.nodes)

    def logp(self, path: Path) -> float:
        return self.nodes[path] if path else 0.0

    def order(self, path: Path, logp: float, chance: float) -> tuple[float, float, int, int, int]:
        """Likeliest, then best path, then arrival, then token, then the parent that was granted first."""
        parent = list(self.nodes).index(path[:-1]) if len(path) > 1 else ROOT
        return -chance * self.weight, -(logp + float(np.log(self.weight))), self.index, path[-1], parent


@dataclass(eq=False)
class Wish:
    """A candidate: somebody's possible node."""

    request: SlowRequest
    path: Path
    logp: float
    chance: float
    at_truncation: bool = False

    @property
    def order(self) -> tuple[float, float, int, int, int]:
        return self.request.order(self.path, self.logp, self.chance)

    @property
    def order_across_depths(self) -> tuple[float, ...]:
        """Of equals the shallower comes first, so that nobody precedes its parent."""
        chance, logp, *ties = self.order
        return chance, logp, len(self.path), *ties


class SlowAllocation:
    """The twin: one request, one candidate, one node at a time."""

    def __init__(self, plan: Plan, caps: Sequence[int], children: Children) -> None:
        self.plan = plan
        self.children = children
        self.fair = Fairness.neutral(len(caps)) if plan.fairness is None else plan.fairness
        self.pool: list[Wish] = []
        self.seen: list[Wish] = []
        self.frontiers: list[int] = []
        self.pays = True
        self.outcome = Outcome()
        shares = [plan.k_max] * len(caps) if plan.shares is None else plan.shares
        self.requests = [
            SlowRequest(
                index,
                min(cap, plan.max_depth),
                10**6 if plan.rerank and share else share,
                float(self.fair.weight[index]),
            )
            for index, (cap, share) in enumerate(zip(caps, shares, strict=True))
        ]
        self.shares = shares

    def run(self) -> Outcome:
        for request in self.requests:
            request.going = request.cap >= 1 and request.share >= 1
        for depth in range(1, self.plan.max_depth + 1):
            frontiers = [*self.frontiers, sum(len(r.frontier) for r in self.requests if r.going)]
            if self.room(frontiers) <= 0 or not self.pays or not any(request.going for request in self.requests):
                break
            self.frontiers = frontiers
            offers = [self.offers(request, depth) for request in self.requests if request.going]
            self.charge([wish for wishes in offers for wish in wishes], depth)
        if self.plan.verify and not self.plan.rerank:
            self.widen()
        self.report()
        if self.plan.rerank:
            self.rerank()
        if not self.plan.verify:
            self.outcome.num_dropped, self.outcome.num_nodes = self.outcome.num_nodes, [0 for _ in self.requests]
            self.outcome.num_transferred = 0
            self.note_chances({})
        return self.outcome

    def offers(self, request: SlowRequest, depth: int) -> list[Wish]:
        """What a request asks for at a depth; the rest of what it has goes to the pool."""
        seen = []
        for path in request.frontier:
            for token, probability in self.children(request.index, path):
                logp = request.logp(path) + float(np.log(probability))
                chance = min(request.chances[path], self.chance(request.index, depth, logp))
                seen.append(Wish(request, (*path, token), logp, chance))
        self.seen += seen
        request.num_seen += len(seen)
        self.outcome.num_offered += len(seen)
        request.going = False
        if not seen:
            return []
        self.gate(request, seen, depth)
        offered: list[Wish] = []
        for wish in sorted(seen, key=lambda wish: wish.order):
            siblings = [other for other in offered if other.path[:-1] == wish.path[:-1]]
            fits = (
                not wish.at_truncation
                and len(offered) < self.plan.widths[depth - 1]
                and len(offered) + len(request.nodes) < request.share
                and (self.plan.children is None or len(siblings) < self.plan.children[depth - 1])
            )
            (offered if fits else self.pool).append(wish)
        return offered

    def gate(self, request: SlowRequest, seen: list[Wish], depth: int) -> None:
        """Mark what stops here and write down the reading."""
        threshold = self.plan.thresholds[depth - 1]
        confidence = float(np.exp(max(wish.logp for wish in seen)))
        unsure = False
        if threshold is not None:
            for wish in seen:
                judged = wish.logp if depth == 1 else request.logp(wish.path[:-1])
                value = confidence if self.plan.gate_scope == "request" else float(np.exp(judged))
                wish.at_truncation = value <= threshold
            unsure = all(wish.at_truncation for wish in seen)
            if self.plan.truncation_rates is not None:
                draws = np.random.default_rng((*self.plan.random_key, depth)).random(len(self.requests))
                for wish in seen:
                    wish.at_truncation = bool(draws[request.index] < self.plan.truncation_rates[depth - 1])
        truncated = all(wish.at_truncation for wish in seen)
        if truncated:
            request.gate_truncated = depth
        self.outcome.readings.append((request.index, depth, confidence, unsure, not truncated))

    def charge(self, offers: list[Wish], depth: int) -> None:
        """Pay for offers, best first. Once nothing is left nothing will ever be widened, so those need no pool."""
        askers = {wish.request for wish in offers}
        for request in askers:
            request.frontier = []
        ordered = sorted(offers, key=lambda wish: wish.order)
        tiers = self.tiers(ordered, [len(r.nodes) for r in self.requests], [r.gained for r in self.requests])
        if not self.plan.rerank:
            affordable = self.affordable(ordered, tiers, depth)
            served = self.worthwhile(affordable, sum(tiers[wish] < REST for wish in affordable))
        elif self.plan.shares is None and ordered:
            best = sorted((wish.chance * wish.request.weight for wish in self.seen), reverse=True)[: self.plan.k_max]
            affordable = [
                wish for wish in ordered if wish.chance * wish.request.weight >= best[-1] or tiers[wish] < REST
            ]
            served = affordable
        else:
            served = affordable = ordered
        self.pool += [wish for wish in ordered if wish not in served]
        for wish in served:
            self.pay(wish, self.outcome.grown)
            wish.request.frontier.append(wish.path)
            if depth > self.plan.target_depth:
                self.outcome.deepened[depth] = self.outcome.deepened.get(depth, 0) + 1
        for request in askers:
            if request not in {wish.request for wish in affordable}:
                request.budget_truncated = depth
            elif not request.frontier:
                request.price_truncated = depth
            request.going = bool(request.frontier) and depth < request.cap and len(request.nodes) < request.share
        self.pays = self.next_level_pays(depth)

    def affordable(self, ordered: list[Wish], tiers: dict[Wish, int], depth: int) -> list[Wish]:
        """Floors first, then as much as leaves enough for floors that are still to be reached."""
        floors = [wish for wish in ordered if tiers[wish] == FLOOR]
        kept_back = 0
        for request in self.requests:
            has = len(request.nodes) + sum(wish.request is request for wish in floors)
            missing = max(0, self.fair.floor - has)
            going = any(wish.request is request for wish in ordered) and depth < request.cap
            kept_back += missing if going else min(missing, request.num_seen - has)
        room = self.room(self.frontiers)
        others = [wish for tier in (TARGET, REST) for wish in ordered if tiers[wish] == tier]
        return (floors + others[: max(0, room - kept_back - len(floors))])[:room]

    def tiers(self, ordered: list[Wish], counts: list[int], gains: list[float]) -> dict[Wish, int]:
        """The tier of each wish, all of them best first, beside so many nodes of so much chance per request."""
        counts, gains, fair = list(counts), list(gains), self.fair
        tiers = {}
        for wish in ordered:
            index = wish.request.index
            needed = gains[index] < fair.need[index] and counts[index] < fair.most_claimed
            tiers[wish] = FLOOR if counts[index] < fair.floor else TARGET if needed else REST
            counts[index] += 1
            gains[index] += wish.chance
        return tiers

    def drafting(self, frontiers: list[int]) -> float:
        """Seconds of levels below so many nodes each."""
        price = self.plan.price
        assert price is not None
        levels = [float(price.level_seconds[min(nodes, len(price.level_seconds) - 1)]) for nodes in frontiers[1:]]
        return price.start_seconds + sum(levels) if frontiers else 0.0

    def room(self, frontiers: list[int]) -> int:
        """Nodes that may still be verified beside levels below so many nodes each."""
        price, most = self.plan.price, self.plan.k_max
        if price is not None:
            drafting = self.drafting(frontiers)
            seconds = [float(verify) + drafting for verify in price.verify_seconds]
            most = max((count for count in range(most + 1) if seconds[count] <= price.max_seconds), default=-1)
        return most if self.plan.rerank else most - sum(len(request.nodes) for request in self.requests)

    def chance(self, request: int, depth: int, logp: float) -> float:
        return float(self.plan.acceptance.chance(depth, np.array([logp]), np.array([request]))[0])

    def verified(self) -> list[float]:
        """Chances of the nodes that are paid for for good."""
        if self.plan.rerank:
            return []
        return [request.chances[path] for request in self.requests for path in request.nodes]

    def rates(self, chances: list[float], frontiers: list[int]) -> list[float]:
        """Tokens per second with none, one, two ... of these bought beside what is verified."""
        price = self.plan.price
        assert price is not None
        verified = self.verified()
        rates = []
        for count in range(min(len(chances), self.plan.k_max - len(verified)) + 1):
            tokens = price.base_tokens + sum(verified) + sum(chances[:count])
            seconds = price.verify_seconds[len(verified) + count] + self.drafting(frontiers)
            rates.append(tokens / float(seconds))
        return rates

    def worthwhile(self, wishes: list[Wish], num_claimed: int) -> list[Wish]:
        """The beginning of the list that gives the best rate, of those that hold all that is claimed."""
        if self.plan.price is None:
            return wishes
        rates = self.rates([wish.chance for wish in wishes], self.frontiers)[num_claimed:]
        return wishes[: num_claimed + rates.index(max(rates))]

    def next_level_pays(self, depth: int) -> bool:
        frontier = [request.chances[path] for request in self.requests if request.going for path in request.frontier]
        price = self.plan.price
        if price is None or not frontier:
            return True
        if any(
            request.going
            and request.gained < self.fair.need[request.index]
            and len(request.nodes) < self.fair.most_claimed
            for request in self.requests
        ):
            return True
        optional = [wish.chance for wish in self.seen] if self.plan.rerank else []
        if self.plan.widen:
            anywhere = self.plan.widen_scope == "all"
            optional = [wish.chance for wish in self.pool if anywhere or wish.at_truncation]
        share = price.continuation[min(depth, len(price.continuation) - 1)]
        hoped = sorted([*optional, *(share * chance for chance in frontier)], reverse=True)
        deeper = [*self.frontiers, len(frontier)]
        return max(self.rates(hoped, deeper)) > max(self.rates(sorted(optional, reverse=True), self.frontiers))

    def widen(self) -> None:
        ordered = sorted(self.pool, key=lambda wish: wish.order_across_depths)
        tiers = self.tiers(ordered, [len(r.nodes) for r in self.requests], [r.gained for r in self.requests])
        chosen: list[Wish] = []
        for wish in sorted(ordered, key=lambda wish: tiers[wish]):
            request = wish.request
            discarded = self.plan.shares is not None and request.gate_truncated
            outside = self.plan.widen_scope == "truncation" and not wish.at_truncation
            allowed = tiers[wish] < REST or (self.plan.widen and not discarded and not outside)
            taken = len(request.nodes) + sum(other.request is request for other in chosen)
            if len(chosen) < self.room(self.frontiers) and allowed and taken < request.share:
                chosen.append(wish)
        for wish in self.worthwhile(chosen, sum(tiers[wish] < REST for wish in chosen)):
            self.pay(wish, self.outcome.widened)

    def rerank(self) -> None:
        """Growing was free: one by one, the best candidate that its request and the batch still have room for."""
        ordered = sorted(self.seen, key=lambda wish: wish.order_across_depths)
        tiers = self.tiers(ordered, [0 for _ in self.requests], [0.0 for _ in self.requests])
        kept: list[Wish] = []
        for wish in sorted(ordered, key=lambda wish: tiers[wish]):
            mine = sum(other.request is wish.request for other in kept)
            if mine < self.shares[wish.request.index] and len(kept) < self.room(self.frontiers):
                kept.append(wish)
        worth = self.worthwhile(kept, sum(tiers[wish] < REST for wish in kept))
        self.outcome.reranked = {(wish.request.index, wish.path) for wish in worth}
        for index, request in enumerate(self.requests):
            mine = [path for owner, path in self.outcome.reranked if owner == index]
            self.outcome.num_nodes[index] = len(mine)
            self.outcome.num_dropped[index] = len(set(request.nodes) - set(mine))
        self.outcome.num_transferred = self.transferred()
        self.note_chances({(wish.request.index, wish.path): wish.chance for wish in worth})

    def pay(self, wish: Wish, log: list[tuple[int, Path]]) -> None:
        wish.request.nodes[wish.path] = wish.logp
        wish.request.chances[wish.path] = wish.chance
        log.append((wish.request.index, wish.path))

    def report(self) -> None:
        outcome = self.outcome
        outcome.readings.sort(key=lambda reading: (reading[1], reading[0]))
        outcome.num_nodes = [len(request.nodes) for request in self.requests]
        outcome.gate_truncated = [request.gate_truncated for request in self.requests]
        outcome.budget_truncated = [request.budget_truncated for request in self.requests]
        outcome.price_truncated = [request.price_truncated for request in self.requests]
        outcome.frontiers = list(self.frontiers)
        outcome.num_dropped = [0 for _ in self.requests]
        outcome.num_transferred = self.transferred()
        self.note_chances({(r.index, path): r.chances[path] for r in self.requests for path in r.nodes})

    def note_chances(self, verified: dict[tuple[int, Path], float]) -> None:
        self.outcome.chances = [[0.0] * self.plan.max_depth for _ in self.requests]
        for (index, path), chance in verified.items():
            self.outcome.chances[index][len(path) - 1] += chance

    def transferred(self) -> int:
        """Nodes beyond even shares, as far as truncated requests left theirs."""
        count = len(self.requests)
        taken = left = 0
        for request, num_nodes in zip(self.requests, self.outcome.num_nodes, strict=True):
            even = self.plan.k_max // count + (1 if request.index < self.plan.k_max % count else 0)
            taken += max(0, num_nodes - even)
            left += max(0, even - num_nodes) if request.gate_truncated else 0
        return min(taken, left)
