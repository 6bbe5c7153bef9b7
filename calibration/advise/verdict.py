"""From measured arms to advice: first a chain, then branches, each only where it surely pays. Knows numbers alone."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calibration.advise.compare import paired_ratios
from calibration.advise.trial import Trial
from echo_sched.arms import REFERENCE

SATURATION = 0.98  # a chain with so much of the best one's speed is long enough
MIN_GAIN = 1.02  # branches must bring that, and be faster in every repeat
MIN_SIBLINGS = 0.02  # of non-first siblings accepted: below it there is nothing for branches to find


class Verdict(NamedTuple):
    """Advice for one concurrency."""

    tree: str | None  # children per node at each depth; None: decode plainly
    sentence: str
    reasons: tuple[str, ...]


def best_chain(trials: Mapping[str, Sequence[Trial]], limit_ms: float | None) -> str:
    """The shortest chain that is nearly as fast as the fastest one within the latency limit (or of all, if none is)."""
    drafting = [arm for arm in trials if arm != REFERENCE]
    eligible = [arm for arm in drafting if within(trials[arm], limit_ms)] or drafting
    ratios = {arm: statistics.median(paired_ratios(trials[arm], trials[REFERENCE])) for arm in eligible}
    return next(arm for arm, ratio in ratios.items() if ratio >= SATURATION * max(ratios.values()))


def judge(chain: str, trials: Mapping[str, Sequence[Trial]], trees: Sequence[str], limit_ms: float | None) -> Verdict:
    """`trials` of plain decoding, of the best chain, and of `trees`, which are that chain with branches."""
    plain = _versus(trials[chain], trials[REFERENCE])
    allowed = within(trials[chain], limit_ms)
    reasons = [f"the chain {chain} makes {plain} of plain decoding's tokens per second"]
    if not allowed:
        reasons.append(_too_slow(chain, trials[chain], limit_ms))
    paying, found = _paying_trees(chain, trials, trees, limit_ms)
    reasons += found
    best = max(paying, key=lambda tree: _median(trials[tree], trials[chain]), default=None)
    chosen = best or chain
    branches = f"keep the chain ({chain})" if best is None else f"use the tree {best}"
    if _median(trials[chosen], trials[REFERENCE]) > 1 and (best or allowed):
        speed = _versus(trials[chosen], trials[REFERENCE])
        return Verdict(chosen, f"{branches}: {speed} of plain decoding's tokens per second", tuple(reasons))
    sentence = f"decode plainly: nothing that was tried pays; if you draft all the same, {branches}"
    return Verdict(None, sentence, tuple(reasons))


def within(trials: Sequence[Trial], limit_ms: float | None) -> bool:
    return limit_ms is None or _gap_ms(trials) <= limit_ms


def _paying_trees(
    chain: str, trials: Mapping[str, Sequence[Trial]], trees: Sequence[str], limit_ms: float | None
) -> tuple[list[str], list[str]]:
    """Trees that surely beat the chain, and a reason for each that does or does not."""
    paying, reasons = [], []
    for tree in trees:
        ratios, siblings = paired_ratios(trials[tree], trials[chain]), trials[tree][0].counts.siblings
        accepted = siblings.other_acceptance or 0.0
        brings = f"{tree}: {siblings.num_other_accepted} of {siblings.num_other} non-first siblings accepted"
        speed = f"{_versus(trials[tree], trials[chain])} of the chain's speed"
        if accepted < MIN_SIBLINGS:
            reasons.append(f"{brings}, so branches have nothing to find")
        elif not within(trials[tree], limit_ms):
            reasons.append(_too_slow(tree, trials[tree], limit_ms))
        elif min(ratios) > 1 and statistics.median(ratios) >= MIN_GAIN:
            paying.append(tree)
            reasons.append(f"{brings}, {speed}")
        else:
            reasons.append(f"{brings}, but {speed}: not surely {MIN_GAIN - 1:.0%} faster")
    return paying, reasons


def _versus(mine: Sequence[Trial], other: Sequence[Trial]) -> str:
    ratios = paired_ratios(mine, other)
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _median(mine: Sequence[Trial], other: Sequence[Trial]) -> float:
    return statistics.median(paired_ratios(mine, other))


def _gap_ms(trials: Sequence[Trial]) -> float:
    return 1000 * statistics.median(trial.gap_p95 for trial in trials)


def _too_slow(arm: str, trials: Sequence[Trial], limit_ms: float | None) -> str:
    return f"{arm}: {_gap_ms(trials):.1f} ms between outputs (95th percentile), above the limit of {limit_ms} ms"
