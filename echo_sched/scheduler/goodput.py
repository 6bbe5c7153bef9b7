"""The policy `goodput`: no gate; the best nodes of the whole batch, as many as raise the tokens expected per second.

After SmartSpec's goodput (arXiv 2406.14066) and TETRIS's batch-level choice (arXiv 2502.15197), on trees. Knows loads,
settings and the economy.
"""

from echo_sched.scheduler.economy import Economy
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.settings import PolicySettings


class GoodputPolicy:
    """Trees grow as long as another level can be hoped to pay, from nodes among the best K_max; then the best stay."""

    name = "goodput"

    def __init__(self, settings: PolicySettings, economy: Economy) -> None:
        self._settings = settings
        self._economy = economy

    def plan(self, load: Load) -> Plan:
        settings, budget = self._settings, self._economy.budget(load)
        return Plan(
            k_max=budget.k_max,
            max_depth=settings.max_depth,
            target_depth=settings.max_depth,
            widths=(settings.branching,) * settings.max_depth,
            thresholds=(None,) * settings.max_depth,
            rerank=True,
            max_drafting=budget.max_drafting,
            price=self._economy.price(load, budget.k_max),
            acceptance=self._economy.acceptance(load),
            fairness=load.fairness(settings.node_floor, budget.k_max),
        )

    def observe(self, load: Load, feedback: Feedback) -> None:
        self._economy.observe(load, feedback)
