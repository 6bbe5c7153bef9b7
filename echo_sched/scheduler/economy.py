"""What the next step may spend, and what its time is worth, on this machine under this load.

    k_max_rule fixed   K_max as set
    k_max_rule auto    K_max = argmax over K of (B + gain(K)) / (T(B) + T(B + P + K) - T(B + P) + drafting(K)), at most
                       as set; 0 is plain decoding at plain decoding's price
    price on           every plan carries a price (price.py)
    price off          no economy: K_max is as set and whatever it allows is bought

Prompt chunks have to be computed whether anybody drafts or not, and the more of them the faster answers end: their own
time is no reason to draft, so only what they make of K's is in the rate. Where they wait at every step, less than T(B)
is decoding's own (crowding.py).

gain(K), what the K best candidates are good for in tokens, is remembered from past steps, and so are the levels they
take (gains.py). drafting(K) is nothing for K = 0, else start, levels and feeding; what the drafter has missed has to be
earned back within RETURN_STEPS steps. K_max changes only for a better rate by MIN_GAIN, and at most once per HOLD_STEPS
steps unless the batch moves; for plain decoding as good a rate is enough. Nothing is learned of what is never tried, so
some steps do what is not planned: where plain decoding is, they draft, for few requests; else they spend nothing or
twice K_max, in turn; the less often, the longer it was of no use. What forwards and drafting take is corrected by what
they took (live_cost.py), chances by what was accepted (live_acceptance.py), and what a further level may be hoped to
bring by what such levels brought (continuation.py). Without a measured cost table there is no economy: K_max is as set
and nothing has a price. Knows no policy.
"""

from typing import NamedTuple

import numpy as np

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.continuation import Continuation
from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.crowding import Crowding
from echo_sched.scheduler.gains import Gains
from echo_sched.scheduler.live_acceptance import LiveAcceptance
from echo_sched.scheduler.live_cost import LiveCost
from echo_sched.scheduler.plan import Feedback, Load
from echo_sched.scheduler.price import Price
from echo_sched.scheduler.profile import Profile
from echo_sched.scheduler.settings import PolicySettings

MIN_GAIN = 1.03  # K_max moves for a rate that is so many times the present one's
HOLD_STEPS = 8
BATCH_MOVE = 0.25  # share of the batch that comes or goes before K_max may move at once
PROBE_LENGTH = 3  # steps that draft more than is planned: the first of them is not like the others
PROBE_STEPS = 16  # before the first probe; doubles with each that changes nothing and is no surprise ...
MOST_PROBE_STEPS = 1024  # ... up to this
SURPRISE, SURPRISE_STEPS = 0.15, 64  # a probe that takes longer or shorter by so much (of e) is repeated after so many
PROBE_SHARE = 8  # a probe that finds K_max 0 drafts for one request in so many ...
PROBE_NODES = 2  # ... and buys so many nodes for each
RETURN_STEPS = 64


class Economy:
    """Budget and price of each step. `observe` must be told what every plan led to, in step order.

    `learned`: what is known of the machine beyond the profile's table; it goes on learning here.
    """

    def __init__(self, settings: PolicySettings, profile: Profile, learned: LiveCost | None = None) -> None:
        self._settings = settings
        self._cost: LiveCost | CostTable | None = profile.cost
        if profile.cost is not None and settings.live_costs == "on":
            self._cost = learned or LiveCost(profile.cost)
        self._acceptance = Acceptance(profile.acceptance)
        self._agreement: LiveAcceptance | None = None  # None: nothing has a price, or chances stay the profile's
        if settings.live_acceptance == "on" and settings.price == "on" and self._cost is not None:
            self._agreement = LiveAcceptance(self._acceptance, settings.max_depth)
        self._continuation = Continuation(profile, settings.max_depth)
        self._gains = Gains()
        self._missed = 0.0  # committed tokens that the drafter was not fed, in steps that did not draft ...
        self._fresh = 0  # ... and in the latest that did
        self._crowding = Crowding()
        self._k_max = -1  # nothing is chosen yet
        self._changed_at = (-HOLD_STEPS, 0)  # (step, batch size)
        self._probe = _Probe(PROBE_STEPS, PROBE_STEPS, plain=True)
        self._planned = Budget(settings.k_max, None)

    def budget(self, load: Load) -> "Budget":
        """What the step may spend, never above the setting."""
        self._planned = self._plan(load)
        return self._planned

    def _plan(self, load: Load) -> "Budget":
        settings = self._settings
        free = settings.price == "off" or settings.k_max_rule == "fixed" or self._cost is None
        targets = load.need is not None  # they come before rates
        if free or targets or not self._gains.known or load.num_requests == 0:
            return Budget(settings.k_max, None)
        step, batch = self._changed_at
        moved = abs(load.num_requests - batch) > BATCH_MOVE * batch
        if moved or load.step - step >= HOLD_STEPS:
            chosen = self._best_k_max(load)
            if chosen != self._k_max or moved:
                self._changed_at = (load.step, load.num_requests)
            if chosen != self._k_max:
                self._probe = _Probe(load.step + PROBE_STEPS, PROBE_STEPS, plain=True)
            self._k_max = chosen
        return self._tried(load) if load.step >= self._probe.due else Budget(self._k_max, None)

    def _tried(self, load: Load) -> "Budget":
        """What a probe spends, which is due."""
        due, pause, plain = self._probe
        plain = plain and isinstance(self._cost, LiveCost)  # else there is nothing to learn of it
        drafts_less = plain and self._k_max > 0  # nothing new runs then, so one step tells
        if drafts_less or load.step >= due + PROBE_LENGTH - 1:
            pause = min(2 * pause, MOST_PROBE_STEPS)
            self._probe = _Probe(load.step + pause, pause, not self._probe.plain)
        if self._k_max == 0:
            few = -(-load.num_requests // PROBE_SHARE)
            return Budget(min(PROBE_NODES * few, self._settings.k_max), few, probe=True)
        return Budget(0 if plain else min(2 * self._k_max, self._settings.k_max), None, probe=True)

    def price(self, load: Load, k_max: int) -> Price | None:
        """The economy of a step with at most `k_max` nodes; None where it may buy them all."""
        if self._settings.price == "off" or self._cost is None or load.num_requests == 0:
            return None
        if self._planned.probe and self._settings.max_step_stretch is None:
            return None
        return self._price(load, k_max)

    def acceptance(self, load: Load) -> Acceptance:
        """What path probabilities are worth to this batch; where nothing has a price, what they say themselves."""
        if self._settings.price == "off" or self._cost is None:
            return Acceptance()
        if self._agreement is None:
            return self._acceptance
        return self._agreement.of(load.temperature, load.num_requests)

    def observe(self, load: Load, feedback: Feedback) -> None:
        """Remember what a step's candidates were worth, up to the K_max that it had, what was accepted, and seconds.

        Candidates of an explored step are not remembered, nor its drafting: its trees are not those that are planned.
        """
        report = feedback.report
        if self._cost is not None:
            self._crowding.observe(load, self._cost)
        self._learn(load, feedback)
        self._note_fed(load, feedback)
        if not feedback.explored and report.num_levels:
            num_drafting = min(load.num_requests, self._planned.max_drafting or load.num_requests)
            self._gains.observe(report, num_drafting, self._planned.k_max, rare=self._planned.probe)

    def _note_fed(self, load: Load, feedback: Feedback) -> None:
        """A step that drafts for everybody feeds what was committed before; what it commits itself comes next."""
        committed = load.num_requests + load.num_prompt_tokens
        if feedback.report.num_levels == 0:
            self._missed = min(self._missed + committed, load.num_cached_tokens + committed)
        elif self._planned.max_drafting is None:
            self._missed, self._fresh = 0.0, committed + sum(feedback.accepted or ())

    def _learn(self, load: Load, feedback: Feedback) -> None:
        report, seconds = feedback.report, feedback.verify_seconds
        if self._agreement is not None and feedback.accepted is not None:
            self._agreement.observe(load.temperature, report.chances, feedback.accepted)
            if report.num_levels:
                self._continuation.observe(report)
        if not isinstance(self._cost, LiveCost):
            return
        if seconds is not None:
            num_tokens = load.num_requests + load.num_prompt_tokens + int(report.num_nodes.sum())
            surprise = self._cost.observe(num_tokens, load.num_cached_tokens, seconds)
            if self._planned.probe and abs(surprise) > SURPRISE:
                due = min(self._probe.due, load.step + SURPRISE_STEPS)
                self._probe = self._probe._replace(due=due, pause=SURPRISE_STEPS)
        usual = self._planned.max_drafting is None and not feedback.explored  # everybody drafts
        if feedback.draft_seconds is not None and report.num_levels and usual:
            num_fed = round(self._missed) + self._fresh
            self._cost.observe_drafting(load.num_requests, report.frontiers, num_fed, feedback.draft_seconds)

    def _price(self, load: Load, k_max: int) -> Price:
        assert self._cost is not None
        roots, beside = load.num_requests, load.num_requests + load.num_prompt_tokens
        drafting, stretch = self._cost.drafting, self._settings.max_step_stretch
        fed = beside + self._missed / RETURN_STEPS
        alone = self._cost.seconds_for(roots, load.num_cached_tokens)
        own = self._crowding.own_share * alone
        curve = self._cost.curve(beside, beside + k_max, load.num_cached_tokens)
        return Price(
            base_tokens=float(load.num_requests),
            verify_seconds=own + curve - curve[0],
            prompt_seconds=float(curve[0]) - own,
            start_seconds=drafting.start(load.num_requests) + fed * drafting.pair_seconds,
            level_seconds=drafting.levels(np.arange(k_max + 1)),
            max_seconds=np.inf if stretch is None else own + stretch * alone,
            continuation=self._continuation.shares,
        )

    def _best_k_max(self, load: Load) -> int:
        """The present K_max or a clearly better one; 0 where nothing is better, or clearly better than 0 to begin with.

        Of equals the least. A step need not buy what it drafted, so drafting is worth more than its rate says.
        """
        price = self._price(load, self._settings.k_max)
        nodes = np.arange(self._settings.k_max + 1.0)
        gain, levels = self._gains.of(nodes, load.num_requests)
        further = np.maximum(levels - 1.0, 0.0)
        below = np.minimum(np.ceil(nodes / np.maximum(levels, 1.0)), nodes).astype(np.int64)  # each, evenly
        drafting = np.where(nodes > 0, price.start_seconds + further * price.level_seconds[below], 0.0)
        rates = (load.num_requests + gain) / (price.verify_seconds + drafting)
        best = int(np.argmax(rates))
        drafts = self._k_max > 0
        if rates[best] <= rates[0] * (1.0 if drafts else MIN_GAIN):
            return 0
        return best if not drafts or rates[best] > MIN_GAIN * rates[self._k_max] else self._k_max


class Budget(NamedTuple):
    """What a step may spend."""

    k_max: int
    max_drafting: int | None  # most requests that draft; None: all
    probe: bool = False  # to be spent whatever it costs: that is what it is to find out


class _Probe(NamedTuple):
    """When more is tried than is planned."""

    due: int  # step
    pause: int  # steps since the one before
    plain: bool  # drafts nothing, where drafts are planned
