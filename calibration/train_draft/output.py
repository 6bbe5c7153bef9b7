"""The folder a training run leaves: the best head so far, its card, and the curve. Every file appears whole.

config.json, model.safetensors    the head with the best held-out first-step accuracy, in bfloat16
README.md                         its card
curve.jsonl, curve.svg            the whole run
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from calibration.train_draft.card import CardFacts, card
from calibration.train_draft.data import Corpus
from calibration.train_draft.flags import ENGINE_FLAGS
from calibration.train_draft.plot import curve_svg
from calibration.train_draft.schedule import Recipe
from calibration.train_draft.state import replace_file
from calibration.train_draft.target import TeachingTarget
from calibration.train_draft.trainer import Trainer
from echo_sched.convert import source_note
from echo_sched.engine.draft.eagle3 import Eagle3Head, save_head
from echo_sched.provenance import provenance


class HeadFolder:
    """Writes the folder of one run."""

    def __init__(
        self, folder: Path, args: argparse.Namespace, target: TeachingTarget, corpus: Corpus, argv: Sequence[str]
    ) -> None:
        self._folder, self._args, self._target, self._corpus, self._argv = folder, args, target, corpus, argv

    def write(self, trainer: Trainer, is_best: bool) -> None:
        """After a held-out evaluation: the curve, and the head if it is the best so far."""
        curve = trainer.state.curve
        self._write_text("curve.jsonl", "".join(f"{json.dumps(row)}\n" for row in curve))
        self._write_text("curve.svg", curve_svg(curve))
        if is_best:
            head, num_layers = trainer.trained_head(), int(self._target.model.config.num_hidden_layers)
            save_head(head, self._folder, num_target_layers=num_layers, dtype=torch.bfloat16)
            self._write_text("README.md", card(self._card_facts(head, trainer.state.scores()[-1])))

    def _card_facts(self, head: Eagle3Head, score: dict[str, Any]) -> CardFacts:
        args, target = self._args, self._target
        shape = {
            "weights_of_the_target": source_note(target.facts.path) or "as published",
            "hidden_states_of_the_target": list(target.aux_layers),
            "target_computed_in": str(target.facts.dtype).removeprefix("torch."),
            "intermediate_size": head.config.intermediate_size,
            "draft_vocabulary": head.config.draft_vocab_size,
        }
        engine = {name: getattr(args, name) for name in ENGINE_FLAGS}
        return CardFacts(
            model=args.model,
            model_fingerprint=target.facts.fingerprint,
            head=shape,
            num_parameters=sum(parameter.numel() for parameter in head.parameters()),
            data=self._data_facts(),
            recipe={name: getattr(args, name) for name in Recipe.__dataclass_fields__},
            score=score,
            provenance={**provenance(self._argv), "engine": engine},
        )

    def _data_facts(self) -> dict[str, Any]:
        corpus = self._corpus
        return {
            "sources": corpus.sources(),
            "file": Path(self._args.data).name,
            "sha256_of_answers": corpus.generations.sha256,
            "training_conversations": len(corpus.training),
            "training_tokens": sum(conversation.length for conversation in corpus.training),
            "training_answer_tokens": sum(len(conversation.answer_ids) for conversation in corpus.training),
            "held_out_conversations": len(corpus.held_out),
            "rows_left_out": corpus.generations.skip_reasons or "none",
            "coverage": corpus.vocabulary.coverage,
        }

    def _write_text(self, name: str, text: str) -> None:
        replace_file(self._folder / name, lambda part: part.write_text(text, encoding="utf-8"))
