"""What a server's own counters say about a run: Prometheus text before and after, and their differences.

Reads the counters of this product and of any server that uses the same `spec_decode_` names. Whatever a server does not
expose is None. Knows nothing of requests.
"""

from collections import defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

# (name, position) -> value, summed over every other label; position is "" where a counter has none
Counters = dict[tuple[str, str], float]

DRAFTS = "spec_decode_num_drafts"
DRAFT_TOKENS = "spec_decode_num_draft_tokens"
ACCEPTED_TOKENS = "spec_decode_num_accepted_tokens"
ACCEPTED_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
VERIFY_STEPS = "verify_steps"
VERIFY_EMITTED = "verify_emitted_tokens"
BUDGET_GRANTED = "verify_budget_tokens"
BUDGET_USED = "verify_used_tokens"
SPECULATION = (DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, ACCEPTED_PER_POSITION)
WANTED = (*SPECULATION, VERIFY_STEPS, VERIFY_EMITTED, BUDGET_GRANTED, BUDGET_USED)
PREFIXES = ("echo_sched_", "vllm:")


def read_counters(text: str) -> Counters:
    """The wanted counters of a Prometheus page; empty when it has none. Raises ValueError when it is no such page."""
    counters: Counters = defaultdict(float)
    for family in text_string_to_metric_families(text):
        name = family.name
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if name not in WANTED or family.type not in ("counter", "histogram"):  # a gauge has no difference over a run
            continue
        for sample in family.samples:
            if sample.name.endswith(("_total", "_sum")):
                counters[name, sample.labels.get("position", "")] += sample.value
    return dict(counters)


def speculation_between(before: Counters, after: Counters) -> dict[str, Any]:
    """The speculation part of a report: what happened between two readings.

    The acceptance length counts every verify step, those without a draft too (1.0 without speculation). Servers that
    count drafts only still give the length where there was one, which is never the lower of the two.
    """

    def gained(name: str) -> float | None:
        return after[name, ""] - before.get((name, ""), 0.0) if (name, "") in after else None

    drafts, drafted, accepted = gained(DRAFTS), gained(DRAFT_TOKENS), gained(ACCEPTED_TOKENS)
    return {
        "spec_decode_acceptance_rate": _ratio(accepted, drafted),
        "spec_decode_acceptance_length": _ratio(gained(VERIFY_EMITTED), gained(VERIFY_STEPS)),
        "spec_decode_acceptance_length_where_drafted": None
        if not drafts or accepted is None
        else 1 + accepted / drafts,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": _per_position(before, after, drafts),
        "budget_granted": gained(BUDGET_GRANTED),
        "budget_used": gained(BUDGET_USED),
    }


def _per_position(before: Counters, after: Counters, drafts: float | None) -> list[float] | None:
    """Share of drafts whose accepted path reached each position, first position first."""
    positions = sorted(
        int(position) for name, position in after if name == ACCEPTED_PER_POSITION and position.isdigit()
    )
    if not positions or not drafts:
        return None
    keys = [(ACCEPTED_PER_POSITION, str(position)) for position in positions]
    return [(after[key] - before.get(key, 0.0)) / drafts for key in keys]


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
