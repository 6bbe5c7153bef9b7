"""One training from settings to head: answer prompts, read, teach, and have everything written.

Loads torch and the model; everything that can be checked without them has been checked before.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from calibration.progress import progress
from calibration.train_draft.answers import answer_prompts
from calibration.train_draft.batches import Batch
from calibration.train_draft.data import Corpus, draft_vocabulary, draw, load_generations, split
from calibration.train_draft.flags import state_file
from calibration.train_draft.output import HeadFolder
from calibration.train_draft.schedule import Recipe
from calibration.train_draft.start import first_head, head_config
from calibration.train_draft.store import FeatureStore
from calibration.train_draft.target import Features, TeachingTarget, load_target
from calibration.train_draft.trainer import Trainer
from echo_sched.config import EngineConfig
from echo_sched.engine.draft.eagle3 import Eagle3Config
from echo_sched.engine.memory import resolve_device
from echo_sched.engine.model_config import read_config
from echo_sched.engine.models import load_tokenizer
from echo_sched.fetch import resolve_model
from echo_sched.flags import engine_config
from echo_sched.loop import DecodeLoop
from echo_sched.notice import say
from echo_sched.prompts import ChatTemplate, load_prompts

# Settings that a continued run must share with its beginning, beside the model and the data.
LASTING = (
    "max_prompts",
    "draft_vocab",
    "intermediate_size",
    "held_out",
    "max_held_out",
    "unroll",
    "batch_tokens",
    "learning_rate",
    "seed",
)


def train_draft(args: argparse.Namespace, out: Path, *, answered: bool, argv: Sequence[str]) -> dict[str, Any]:
    """Train and write into `out`. Returns a summary. Raises DataError, ModelError, ConfigError."""
    config = engine_config(args, policy="off", drafter="ngram")
    path = resolve_model(config.model)
    tokenizer = load_tokenizer(path)
    template: ChatTemplate = args.chat_template
    if template == "auto":
        template = "always" if tokenizer.chat_template else "never"
    shape = head_config(args, read_config(path))
    data = Path(args.data) if answered else _answers(args, config, out, template)
    device = resolve_device(config.device)
    model, facts = load_target(path, dtype=config.dtype, device=device, max_len=config.max_model_len)
    generations = load_generations(
        data, tokenizer, vocab_size=facts.vocab_size, max_len=facts.max_model_len, chat_template=template
    )
    training, held_out = split(
        draw(generations.conversations, args.max_prompts, args.seed), args.held_out, args.max_held_out
    )
    unseen = set(held_out)  # all other answers count, drawn or not: rare tokens need much text
    known = [conversation for conversation in generations.conversations if conversation not in unseen]
    vocabulary = draft_vocabulary(known, shape.draft_vocab_size, facts.vocab_size, facts.eos_ids)
    corpus = Corpus(generations, training, held_out, vocabulary)
    say(corpus.describe())
    target = TeachingTarget(model, facts, shape.aux_layers, torch.from_numpy(vocabulary.target_ids))
    return _teach(args, out, target, shape, corpus, argv)


def _answers(args: argparse.Namespace, config: EngineConfig, out: Path, template: ChatTemplate) -> Path:
    """The file with the target's answers to the prompts of `args.data`, finished first if need be."""
    prompts = load_prompts(args.data)
    settings = [prompts.sha256, config.model, args.max_new_tokens, args.max_prompts, args.seed, template]
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]
    path = state_file(out).parent / f"generations-{digest}.jsonl"
    with progress("answering prompts") as report:
        answer_prompts(
            DecodeLoop.from_config(config),
            prompts.prompts,
            path,
            max_new_tokens=args.max_new_tokens,
            max_prompts=args.max_prompts or len(prompts.prompts),
            chat_template=template,
            concurrency=config.max_batch_size,
            seed=args.seed,
            report=report,
        )
    return path


def _teach(
    args: argparse.Namespace,
    out: Path,
    target: TeachingTarget,
    shape: Eagle3Config,
    corpus: Corpus,
    argv: Sequence[str],
) -> dict[str, Any]:
    origin = {
        "model": target.facts.fingerprint,
        "data": corpus.generations.sha256,
        "conversations": len(corpus.training) + len(corpus.held_out),
        "hidden states": list(target.aux_layers),
    }
    trainer = Trainer(
        Recipe(**{name: getattr(args, name) for name in Recipe.__dataclass_fields__}),
        first_head(shape, target, corpus.vocabulary, args.seed),
        target,
        _feature_source(args, target, corpus, origin),
        corpus.training,
        corpus.held_out,
        draft_ids=torch.from_numpy(corpus.vocabulary.draft_ids(shape.vocab_size)),
        identity={**origin, **{name: getattr(args, name) for name in LASTING}},
        state_path=state_file(out),
        after_score=HeadFolder(out, args, target, corpus, argv).write,
    )
    if args.resume:
        trainer.resume()
        say(f"going on behind step {trainer.state.step}")
    with progress("training (per mille)") as report:
        trainer.run(report)
    best = max(trainer.state.scores(), key=lambda row: row["accuracy"][0])
    return {"out": str(out), "steps": trainer.state.step, "seconds": round(trainer.state.seconds, 1), "best": best}


def _feature_source(
    args: argparse.Namespace, target: TeachingTarget, corpus: Corpus, origin: dict[str, Any]
) -> Callable[[Batch], Features]:
    if args.cache_features is None:
        return target.features
    # The drawing and the split decide the order of conversations on disk.
    arranged_by = {name: getattr(args, name) for name in ("max_prompts", "seed", "held_out", "max_held_out")}
    identity = {**origin, **arranged_by, "dtype": str(target.facts.dtype)}
    conversations = [*corpus.training, *corpus.held_out]
    widths = (len(target.aux_layers) * target.hidden_size, target.hidden_size)
    return FeatureStore(Path(args.cache_features), identity, conversations, widths, target.features).features
