"""Whose tokens are plain decoding's: all of them in `exact` numerics, and in `fast` as many as a control's."""

from benchmarks.reproduce.library import Library, Results
from benchmarks.reproduce.words import missing, number, percent, table, verdict
from echo_sched.arms import REFERENCE

STUDY = "equality"
FAST_STUDIES = ("bars", "temperature")


def bit_for_bit(results: Results) -> tuple[bool | None, str]:
    """Bar 5."""
    shares = [results.share_equal(block, arm) for block in results.blocks for arm in results.arms if arm != REFERENCE]
    if results.quick or None in shares:
        return None, "not every arm has run"
    return all(
        share == 1.0 for share in shares
    ), f"{sum(share == 1.0 for share in shares)} of {len(shares)} cells equal"


def equality_block(library: Library) -> str:
    parts = []
    results = library.study(STUDY)
    if results is None:
        parts.append(missing(STUDY))
    else:
        met, reason = bit_for_bit(results)
        parts += [
            "`exact` numerics: share of requests with the tokens of `off`:",
            table(["requests", *(f"`{arm}`" for arm in results.arms if arm != REFERENCE)], _shares(results)),
            f"Bar 5, {verdict(met)}: {reason}.",
        ]
    for name in FAST_STUDIES:
        fast = library.study(name)
        if fast is not None:
            parts += [
                f"`fast` numerics, study `{name}`; the control is `off` against `off` at the next concurrency; the "
                "margin is the largest of those that were computed:",
                table(
                    ["requests", "control", *(f"`{arm}`, margin" for arm in fast.arms if arm != REFERENCE)], _fast(fast)
                ),
            ]
    return "\n\n".join(parts)


def _shares(results: Results) -> list[list[str]]:
    arms = [arm for arm in results.arms if arm != REFERENCE]
    return [[block, *(percent(results.share_equal(block, arm)) for arm in arms)] for block in results.blocks]


def _fast(results: Results) -> list[list[str]]:
    arms = [arm for arm in results.arms if arm != REFERENCE]
    return [
        [
            block,
            percent(results.control(block)),
            *(f"{percent(results.share_equal(block, arm))}, {number(_margin(results, block, arm), 3)}" for arm in arms),
        ]
        for block in results.blocks
    ]


def _margin(results: Results, block: str, arm: str) -> float | None:
    """The largest that was computed; "inf" is how a file writes one without limit."""
    margins = [
        float(fork[4])
        for cell in results.cells(block, arm)
        for fork in cell["equality"]["forks"]
        if fork[4] is not None
    ]
    return max(margins, default=None)
