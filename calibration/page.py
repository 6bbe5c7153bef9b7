"""The page that shows a calibration: figures, tables and where the numbers came from, in one HTML file.

Everything is inside the file; no script, and nothing is fetched. Knows the result, and not how it came about.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from calibration import page_figures as figures
from calibration.result import Calibration
from echo_sched.plots import save_text

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; border-bottom: 1px solid #ddd; }
p { max-width: 46rem; } svg { display: block; max-width: 100%; height: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #eee; }
th { color: #555; font-weight: 600; }
th:first-child, td:first-child { text-align: left; } pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; }
.scroll { overflow-x: auto; }
"""


def write_page(path: str | Path, found: Calibration) -> None:
    """The file appears whole or not at all. Raises ConfigError where it cannot be written."""
    save_text(path, page(found))


def page(found: Calibration) -> str:
    """HTML text."""
    title = f"Calibration of {found.profile.drafter.name} for {found.profile.model.name}"
    sections = (
        ("Depths", _depths),
        ("Confidence", _confidence),
        ("ROC", _roc),
        ("Reliability", _reliability),
        ("Acceptance", _acceptance),
        ("Thresholds by load", _thresholds),
        ("Costs", _costs),
        ("Provenance", _provenance),
    )
    parts = [f'<section id="{_anchor(name)}">\n<h2>{name}</h2>\n{write(found)}\n</section>' for name, write in sections]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{_summary(found)}\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _summary(found: Calibration) -> str:
    data, run = (found.profile.provenance[name] for name in ("data", "run"))
    read = [str(row.depth) for row in found.fit.checkpoints]
    listed = f"the gate reads depth {', '.join(read)}" if read else "no depth is worth a gate"
    reason = "" if found.fit.no_checkpoint_reason is None else f" ({found.fit.no_checkpoint_reason})"
    return _text(
        f"{data['num_prompts']} prompts of {data['file']}, {run['num_output_tokens']} tokens in {run['num_steps']} "
        f"steps with ungated trees. Target depth {found.fit.target_depth}, typical depth "
        f"{found.fit.typical_depth:.2f}; {listed}{reason}."
    )


def _depths(found: Calibration) -> str:
    rows = [
        (row.depth, row.n, row.acceptance, row.mean_confidence, _interval(row.auc, row.auc_low, row.auc_high),
         row.conditional.n, row.conditional.acceptance,
         _interval(row.conditional.auc, row.conditional.auc_low, row.conditional.auc_high),
         _interval(row.drop, row.drop_low, row.drop_high), row.threshold, row.held_out_j, row.rejection or "checkpoint")
        for row in found.fit.depths
    ]  # fmt: skip
    headings = ("depth", "readings", "accepted", "confidence", "AUC", "reached the depth above", "went on",
                "conditional AUC", "drop", "Youden's threshold", "held-out J", "verdict")  # fmt: skip
    return _text(
        "AUC: does confidence tell whether the accepted path reaches the depth? Conditional AUC: the same among "
        "requests whose path reached the depth above, so what confidence tells of this very depth. Drop: how much less "
        "often a path goes on here than one depth above. Intervals are 95 %, from resampling prompts."
    ) + _table(headings, rows)


def _confidence(found: Calibration) -> str:
    return _text("What a gate separates: confidence where the path came so far, and where it did not.") + (
        figures.confidence_histograms(found)
    )


def _roc(found: Calibration) -> str:
    return _text("Numbers are areas under the curve (AUC).") + figures.roc_curves(found)


def _reliability(found: Calibration) -> str:
    return _text("Whether path probabilities come true, and what the scheduler takes them for.") + (
        figures.reliability_curves(found)
    )


def _acceptance(found: Calibration) -> str:
    depths = range(1, len(found.categories[0].acceptance) + 1)
    headings = ("kind", "prompts", "share of steps", "tokens per step", *(f"depth {depth}" for depth in depths))
    rows = [(row.category, row.num_prompts, row.share_of_steps, row.tokens_per_step, *row.acceptance)
            for row in found.categories]  # fmt: skip
    separate = [(row.category, *row.auc) for row in found.categories]
    return (
        figures.acceptance_figure(found)
        + _text("Share of requests with offers whose accepted path reached the depth:")
        + _table(headings, rows)
        + _text("AUC:")
        + _table(("kind", *(f"depth {depth}" for depth in depths)), separate)
    )


def _thresholds(found: Calibration) -> str:
    depths = [row.depth for row in found.profile.checkpoints]
    loads = found.profile.loads if found.buckets else ("any",)
    chosen = [
        (load, *(row.thresholds[number] for row in found.profile.checkpoints)) for number, load in enumerate(loads)
    ]
    table = _table(("K_max / B", *(f"depth {depth}" for depth in depths)), chosen)
    if not found.buckets:
        return _text("The same for every load: Youden's J needs no costs.") + table
    speeds = [(row.load, row.batch_size, *row.fitting, *(row.held_out or (None,) * 3)) for row in found.buckets]
    names = ("these", "Youden's", "no gate")
    headings = ("K_max / B", "B", *(f"{name}, fitting" for name in names), *(f"{name}, held out" for name in names))
    return (
        _text("Offers with confidence at or below the threshold are not granted. Chosen on the fitting half:")
        + table
        + _text("Tokens per second of replayed steps, by the costs below, on both halves of the prompts:")
        + _table(headings, speeds)
        + _text("What was tried in the first round, a depth at a time:")
        + figures.threshold_figure(found)
    )


def _costs(found: Calibration) -> str:
    cost = found.profile.cost
    if cost is None:
        return _text("Not measured.")
    return figures.cost_figure(found) + _text(
        f"One draft level for one request takes {1000 * cost.drafting.start(1):.2f} ms. K_max is what the policy chose "
        "on replayed steps with --k-max-rule auto."
    )


def _provenance(found: Calibration) -> str:
    facts = json.dumps(found.profile.provenance, indent=1, ensure_ascii=False)
    return f"<pre>{escape(facts)}</pre>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}\n</table></div>\n'


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return "–" if value is None else escape(str(value))


def _interval(value: float | None, low: float | None, high: float | None) -> str | None:
    return None if value is None or low is None or high is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


def _text(words: str) -> str:
    return f"<p>{escape(words)}</p>\n"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
