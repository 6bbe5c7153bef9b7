"""The README.md of a trained head: what it is for, what it was made from, how, and how good it is.

Knows facts only; measures nothing.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from calibration.train_draft.lessons import STEP_WEIGHT, TOP


class CardFacts(NamedTuple):
    """Everything that the card says."""

    model: str
    model_fingerprint: str
    head: Mapping[str, Any]  # settings of the network
    num_parameters: int
    data: Mapping[str, Any]  # files by hash, conversations by source, what was left out
    recipe: Mapping[str, Any]
    score: Mapping[str, Any]  # the held-out row of the curve that the saved head belongs to
    provenance: Mapping[str, Any]


def card(facts: CardFacts) -> str:
    """Markdown."""
    name = facts.model.rstrip("/").rsplit("/", 1)[-1]
    return f"""\
# EAGLE-3 draft head for {name}

Drafts tokens for `{name}` (fingerprint `{facts.model_fingerprint}`) and for no other model. {facts.num_parameters:,} \
parameters in the original EAGLE-3 layout; token embeddings are the target's and are not in the file.

    echo-sched serve --model {facts.model} --drafter eagle3 --draft-model THIS_FOLDER

## Accuracy

Held out by prompt, {facts.score["num_tokens"]:,} answer tokens, after step {facts.score["step"]}. A hit is the text's \
own next token; tokens outside the draft vocabulary are misses; earlier tokens of the draft are the true ones.

{_accuracy(facts.score)}

![loss and accuracy over training](curve.svg)

## Data

Only the target's own answers are learnt; prompts are context. The draft vocabulary holds the most frequent answer \
tokens of all that is not held out, {facts.data["coverage"]:.2%} of that text. Licences are those of the sources.

| source | conversations |
|---|---|
{_table(facts.data["sources"])}

{_list({key: value for key, value in facts.data.items() if key != "sources"})}

## Recipe

Soft cross-entropy against the target's distribution over the draft vocabulary, training-time test with \
{facts.recipe["unroll"]} unrolled steps weighted {STEP_WEIGHT}^s, AdamW, warm-up and cosine.

{_list({**facts.head, **facts.recipe})}

## Provenance

```json
{json.dumps(facts.provenance, indent=1)}
```
"""


def _accuracy(score: Mapping[str, Any]) -> str:
    steps = [(f"step {step}", share) for step, share in enumerate(score["accuracy"], start=1)]
    rows = [*steps, (f"within the top {TOP} at step 1", score["accuracy_top"])]
    return "| drafted token | accuracy |\n|---|---|\n" + "\n".join(f"| {name} | {share:.3f} |" for name, share in rows)


def _table(counts: Mapping[str, int]) -> str:
    return "\n".join(f"| {name} | {count} |" for name, count in counts.items())


def _list(facts: Mapping[str, Any]) -> str:
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in facts.items())
