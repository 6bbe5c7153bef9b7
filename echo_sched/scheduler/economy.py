"""What the next step may spend, and what its time is worth, on this machine under this load.

    k_max_rule fixed   K_max as set
    k_max_rule auto    K_max = argmax over K of (B + gain(K)) / (T(B + P + K, L) + levels * level seconds), at most as
                       set; 0 is plain decoding at plain decoding's price
    price on           every plan carries a price (price.py)
    price off          no economy: K_max is as set and whatever it allows is bought

gain(K), what the K best candidates are good for in tokens, is remembered from past steps, per request. K_max changes
only for a better rate by MIN_GAIN, and at most once per HOLD_STEPS steps unless the batch moves. Without a measured
cost curve there is no economy: K_max is as set and nothing has a price. Knows no policy.
"""

import numpy as np

from echo_sched.scheduler.acceptance import Acceptance
from echo_sched.scheduler.plan import AllocationReport, Load
from echo_sched.scheduler.price import Price
from echo_sched.scheduler.profile import Profile
from echo_sched.scheduler.settings import PolicySettings
from echo_sched.tree import FloatArray

MIN_GAIN = 1.03  # K_max moves for a rate that is so many times the present one's
HOLD_STEPS = 8
BATCH_MOVE = 0.25  # share of the batch that comes or goes before K_max may move at once
PROBE_STEPS = 64  # little is learned of what is never tried, so one step in so many may spend all
MEMORY = 0.1  # weight of the latest step in what is remembered
# nodes per request at which gain(K) is remembered
NODES_PER_REQUEST = np.array([0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64], np.float64)


class Economy:
    """Budget and price of each step. `observe` must be told what every plan led to, in step order."""

    def __init__(self, settings: PolicySettings, profile: Profile) -> None:
        self._settings = settings
        self._cost = profile.cost
        self._acceptance = Acceptance(profile.acceptance)
        self._continuation = _continuation(profile, settings.max_depth)
        self._gain: FloatArray | None = None  # [len(NODES_PER_REQUEST)] tokens per request; None: nothing seen yet
        self._levels = 0.0  # drafted per step that drafts
        self._k_max = settings.k_max
        self._changed_at = (-HOLD_STEPS, 0)  # (step, batch size)
        self._probed_at = 0
        self._tried = settings.k_max  # K_max of the latest plan

    def k_max(self, load: Load) -> int:
        """Most nodes of the step, never above the setting."""
        self._tried = self._choose_k_max(load)
        return self._tried

    def _choose_k_max(self, load: Load) -> int:
        settings = self._settings
        free = settings.price == "off" or settings.k_max_rule == "fixed" or self._cost is None
        if free or self._gain is None or load.num_requests == 0:
            return settings.k_max
        step, batch = self._changed_at
        moved = abs(load.num_requests - batch) > BATCH_MOVE * batch
        if moved or load.step - step >= HOLD_STEPS:
            chosen = self._best_k_max(load)
            if chosen != self._k_max or moved:
                self._changed_at = (load.step, load.num_requests)
            self._k_max = chosen
        if load.step - self._probed_at >= PROBE_STEPS:
            self._probed_at = load.step
            return settings.k_max
        return self._k_max

    def price(self, load: Load, k_max: int) -> Price | None:
        """The economy of a step with at most `k_max` nodes."""
        if self._settings.price == "off" or self._cost is None or load.num_requests == 0:
            return None
        return self._price(load, k_max)

    def observe(self, load: Load, report: AllocationReport) -> None:
        """Remember what the candidates of a step were worth, up to the K_max that it had."""
        if report.num_levels == 0:
            return
        gained = np.concatenate([[0.0], np.cumsum(np.sort(report.seen.chance)[::-1])]) / load.num_requests
        gain = np.interp(NODES_PER_REQUEST * load.num_requests, np.arange(len(gained)), gained)
        fresh = 1.0 if self._gain is None else MEMORY
        known = gain if self._gain is None else self._gain
        tried = NODES_PER_REQUEST * load.num_requests <= self._tried
        self._gain = np.where(tried, (1 - fresh) * known + fresh * gain, known)
        self._levels += fresh * (report.num_levels - self._levels)

    def _price(self, load: Load, k_max: int) -> Price:
        assert self._cost is not None
        beside = load.num_requests + load.num_prompt_tokens
        return Price(
            base_tokens=float(load.num_requests),
            verify_seconds=self._cost.curve(beside, beside + k_max, load.context, load.num_requests),
            level_seconds=self._cost.draft_level_seconds,
            acceptance=self._acceptance,
            continuation=self._continuation,
        )

    def _best_k_max(self, load: Load) -> int:
        """The present K_max, or a clearly better one. Of equals the smallest."""
        assert self._gain is not None
        price = self._price(load, self._settings.k_max)
        nodes = np.arange(self._settings.k_max + 1)
        gain = load.num_requests * np.interp(nodes / load.num_requests, NODES_PER_REQUEST, self._gain)
        drafting = np.where(nodes > 0, self._levels * price.level_seconds, 0.0)
        rates = (load.num_requests + gain) / (price.verify_seconds + drafting)
        best = int(np.argmax(rates))
        return best if rates[best] > MIN_GAIN * rates[self._k_max] else self._k_max


def _continuation(profile: Profile, max_depth: int) -> tuple[float, ...]:
    """[max_depth] how likely the accepted path goes on to each depth from the one above; 1 where nobody measured."""
    reached = {row.depth: row.acceptance for row in profile.depths}
    shares = []
    for depth in range(1, max_depth + 1):
        here, above = reached.get(depth), reached.get(depth - 1, 1.0 if depth == 1 else None)
        shares.append(min(1.0, here / above) if here is not None and above else 1.0)
    return tuple(shares)
