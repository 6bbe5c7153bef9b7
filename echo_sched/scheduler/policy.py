"""Policies: the rules that turn a step's load into a plan, by name.

off      no trees: plain decoding at plain decoding's price                                     fixed.py
static   one fixed tree per request, cut to an even share of K_max                              fixed.py
table    the same, with a tree for each range of batch sizes ("dynamic speculation" elsewhere)  fixed.py
dynamic  a beam per request, then the best of all it saw, up to its even share of K_max         fixed.py
echo     base tree, gate at checkpoint depths, budget moving to whoever is confident            echo.py
goodput  no gate: the best nodes of the whole batch, as many as pay                             goodput.py

A policy writes plans and nothing else; every plan is carried out by the same Allocation. Knows no drafter and no model.
"""

from typing import Protocol

from echo_sched.errors import ConfigError
from echo_sched.scheduler.echo import EchoPolicy
from echo_sched.scheduler.economy import Economy
from echo_sched.scheduler.fixed import STATIC_SHAPE, DynamicPolicy, FixedPolicy, OffPolicy
from echo_sched.scheduler.goodput import GoodputPolicy
from echo_sched.scheduler.live_cost import LiveCost
from echo_sched.scheduler.plan import Feedback, Load, Plan
from echo_sched.scheduler.profile import Profile
from echo_sched.scheduler.settings import PolicySettings, parse_shapes

__all__ = ["Load", "Plan", "Policy", "PolicySettings", "make_policy"]


class Policy(Protocol):
    """Plans each step from its load. `observe` must be told what every plan led to, in step order."""

    name: str

    def plan(self, load: Load) -> Plan: ...

    def observe(self, load: Load, feedback: Feedback) -> None: ...


def make_policy(settings: PolicySettings, profile: Profile, learned: LiveCost | None = None) -> Policy:
    """The policy that `settings` name; `learned` is of this machine. Raises ConfigError for an unknown name."""
    economy = Economy(settings, profile, learned)
    if settings.policy == "off":
        return OffPolicy()
    if settings.policy == "static":
        return FixedPolicy("static", STATIC_SHAPE, settings, economy)
    if settings.policy == "table":
        return FixedPolicy("table", parse_shapes(settings.shapes), settings, economy)
    if settings.policy == "dynamic":
        return DynamicPolicy(settings, economy)
    if settings.policy == "echo":
        return EchoPolicy(settings, profile, economy)
    if settings.policy == "goodput":
        return GoodputPolicy(settings, economy)
    raise ConfigError(f"unknown policy {settings.policy!r}; known: off, static, table, dynamic, echo, goodput")
