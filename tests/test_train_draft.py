"""Training a draft head: its parts against slow twins, and whole runs on a tiny model."""

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from calibration.collect import collect
from calibration.train_draft.batches import deal, make_batch
from calibration.train_draft.data import Conversation, draft_vocabulary, draw, load_generations, split
from calibration.train_draft.lessons import Lessons, Scoreboard, step_losses, weigh
from calibration.train_draft.plot import curve_svg, draw_accuracy, draw_loss
from calibration.train_draft.schedule import Recipe, has_stalled, rate
from calibration.train_draft.start import first_head
from calibration.train_draft.state import TrainingState
from calibration.train_draft.store import FeatureStore
from calibration.train_draft.target import Features, TeachingTarget, load_target
from calibration.train_draft.trainer import Trainer
from calibration.train_draft.unroll import unroll
from echo_sched import cli
from echo_sched.config import EngineConfig
from echo_sched.engine.draft.eagle3 import Eagle3Config, Eagle3Head, TargetShape, load_head
from echo_sched.engine.reference import reference_decode
from echo_sched.errors import ConfigError, DataError
from echo_sched.loop import DecodeLoop
from echo_sched.types import Request, SamplingParams
from tests.tiny_models import VOCAB_SIZE, random_prompt, tiny_model

HIDDEN = 48
HEAD = Eagle3Config(
    hidden_size=HIDDEN, target_hidden_size=HIDDEN, aux_layers=(1, 2), intermediate_size=64, num_heads=6, num_kv_heads=2,
    head_dim=8, vocab_size=VOCAB_SIZE, draft_vocab_size=100,
)  # fmt: skip
CPU = torch.device("cpu")


def conversation(prompt_len: int, answer_len: int, seed: int = 0) -> Conversation:
    ids = random_prompt(prompt_len + answer_len, seed=seed)
    return Conversation(ids[:prompt_len], ids[prompt_len:], "made up")


# ---- unrolled steps ----


class OneByOne:
    """Attention of one row at a time to everything before it, the way a drafter with a cache runs."""

    def __init__(self, keys: list[Tensor] | None = None, values: list[Tensor] | None = None) -> None:
        self.keys, self.values = list(keys or []), list(values or [])

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys.append(key[0, :, 0])
        self.values.append(value[0, :, 0])
        folds = query.shape[1] // key.shape[1]
        keys, values = (torch.stack(rows).repeat_interleave(folds, 1) for rows in (self.keys, self.values))
        weights = (torch.einsum("hd,nhd->hn", query[0, :, 0], keys) / math.sqrt(query.shape[-1])).softmax(-1)
        return torch.einsum("hn,nhd->hd", weights, values)[None, None]


@torch.no_grad()
def drafted(head: Eagle3Head, table: Tensor, ids: tuple[int, ...], aux: Tensor, start: int, steps: int) -> list[Tensor]:
    """What drafting behind row `start` computes, step by step, with the text's own tokens."""
    cache = OneByOne()

    def row(hidden: Tensor, position: int) -> Tensor:
        token = torch.tensor(ids[position + 1])
        return head(table[token][None, None], hidden[None, None], torch.tensor([[position]]), cache)[0, 0]

    for position in range(start + 1):
        output = row(head.fuse(aux[position]), position)
    outputs = [output]
    for step in range(1, steps):
        outputs.append(row(outputs[-1], start + step))
    return outputs


def test_unrolled_steps_are_what_drafting_computes() -> None:
    torch.manual_seed(0)
    head, table, steps = Eagle3Head(HEAD).double(), torch.randn(VOCAB_SIZE, HIDDEN, dtype=torch.float64), 4
    conversations = [conversation(5, 9, seed=1), conversation(1, 2, seed=2), conversation(8, 6, seed=3)]
    batch = make_batch(conversations, [2, 0, 1])
    aux = torch.randn(len(batch.ids), HEAD.feature_size, dtype=torch.float64)
    outputs = unroll(head, lambda ids: table[ids], aux, batch, steps)

    first, row, num_compared = 0, 0, 0
    for member in batch.members:
        prompt, answer, _ = conversations[member]
        ids, own_aux = prompt + answer, aux[first : first + len(prompt + answer)]
        for start in range(len(prompt) - 1, len(ids) - 2):
            reachable = min(steps, len(ids) - 2 - start)
            assert int(batch.remaining[row]) == len(ids) - 3 - start and int(batch.label[row]) == ids[start + 2]
            for step, expected in enumerate(drafted(head, table, ids, own_aux, start, reachable)):
                torch.testing.assert_close(outputs[step][row], expected, rtol=1e-10, atol=1e-10)
                num_compared += 1
            row += 1
        first += len(ids)
    assert row == len(batch.start) and num_compared > 30


@torch.no_grad()
def test_losses_and_accuracies_by_hand() -> None:
    torch.manual_seed(0)
    head = Eagle3Head(HEAD)
    batch = make_batch([conversation(3, 5, seed=1), conversation(2, 3, seed=2)], [0, 1])
    num_starts = len(batch.start)
    outputs = [torch.randn(num_starts, HIDDEN) for _ in range(3)]
    probabilities, label = torch.rand(num_starts, 100).softmax(-1), torch.tensor([7, -1, 9, 11, 3, -1])
    lessons = Lessons(probabilities, label)
    board = Scoreboard(3)
    board.add(head, outputs, lessons, batch)
    score, losses = board.score(), step_losses(head, outputs, lessons, batch)

    for step, reachable in enumerate([[0, 1, 2, 3, 4, 5], [0, 1, 2, 4], [0, 1]]):
        logp = head.logits(outputs[step]).log_softmax(-1)
        taught = [start for start in reachable if label[start + step] >= 0]
        each = [-float((probabilities[start + step] * logp[start]).sum()) for start in taught]
        assert float(losses[step]) == pytest.approx(np.mean(each), rel=1e-5)
        hits = [int(logp[start].argmax()) == int(label[start + step]) for start in reachable]
        assert score.accuracy[step] == pytest.approx(np.mean(hits))
    top = [int(label[start]) in logp_top for start, logp_top in enumerate(head.logits(outputs[0]).topk(8)[1].tolist())]
    assert score.accuracy_top == pytest.approx(np.mean(top)) and score.num_tokens == 6
    expected = (losses[0] + 0.8 * losses[1] + 0.64 * losses[2]) / (1 + 0.8 + 0.64)
    assert score.loss == pytest.approx(float(weigh(losses)), rel=1e-5) == pytest.approx(float(expected), rel=1e-5)


# ---- data ----


class WordTokenizer:
    """Ids are word lengths; a chat is its contents behind a 1 and before a 2."""

    chat_template = "here"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [len(word) for word in text.split()]

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        return " ".join(["x", *(message["content"] for message in conversation), "xx"])


def test_a_generations_file_is_read_with_reasons_for_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "generations.jsonl.gz"
    rows: list[Any] = [
        {"source": "s", "prompt": "aaa bbbb", "response": "ignored", "response_ids": [5, 6, 7]},
        {"messages": [{"role": "user", "content": "aaaa"}], "response": "aaa aa"},
        {"prompt": "aaa", "response_ids": [5]},
        {"prompt": "aaa", "response_ids": [5, 99]},
        {"prompt": "aaa", "response_ids": [5] * 30},
        {"prompt": "aaa", "response_ids": ["5", "6"]},
        {"prompt": "aaa"},
        {"response_ids": [5, 6]},
    ]
    with gzip.open(path, "wt") as file:
        file.write("\n".join([*map(json.dumps, rows), "not json"]))
    found = load_generations(path, WordTokenizer(), vocab_size=50, max_len=20, chat_template="always")
    assert found.conversations == [
        Conversation((1, 3, 4, 2), (5, 6, 7), "s"),
        Conversation((1, 4, 2), (3, 2), "unnamed"),
    ]
    assert found.skip_reasons == {
        "an answer of fewer than 2 tokens": 1,
        "tokens outside the model's vocabulary": 1,
        "longer than 20 tokens": 1,
        "no answer": 2,
        "no known field": 1,
        "not JSON": 1,
    }
    assert found.num_skipped == 7


def test_the_split_is_by_prompt_and_does_not_move() -> None:
    conversations = [conversation(4, 5, seed=seed % 300) for seed in range(600)]
    training, held_out = split(conversations, 0.1, 1000)
    assert len(training) + len(held_out) == 600 and 20 <= len(held_out) <= 110
    assert not {c.prompt_ids for c in training} & {c.prompt_ids for c in held_out}
    more = [conversation(4, 5, seed=seed) for seed in range(1000, 1200)]
    assert [c for c in split([*more, *conversations], 0.1, 10_000)[1] if c not in more] == held_out
    assert len(split(conversations, 0.1, 20)[1]) < 40
    with pytest.raises(DataError, match="too few"):
        split(conversations[:1], 0.5, 10)


def test_a_drawing_is_random_and_repeatable() -> None:
    conversations = [conversation(4, 5, seed=seed) for seed in range(50)]
    drawn = draw(conversations, 20, 1)
    assert len(set(drawn)) == 20 and set(drawn) <= set(conversations) and set(drawn) != set(conversations[:20])
    assert draw(conversations, 20, 1) == drawn != draw(conversations, 20, 2)
    assert draw(conversations, None, 1) == draw(conversations, 60, 1) == conversations


def test_the_draft_vocabulary_holds_what_answers_use() -> None:
    conversations = [
        Conversation((1, 2, 9, 9, 9, 9), (4, 4, 4, 30, 30, 5), "s"),
        Conversation((9, 6, 6), (30, 30, 11, 12), "s"),
    ]
    chosen = draft_vocabulary(conversations, 6, 40, always=[2])
    # by answers: 30 (4), 4 (3), then 5, 11, 12 (1); 2 is forced in; prompt tokens do not count by themselves
    assert chosen.target_ids.tolist() == [2, 4, 5, 11, 12, 30]
    assert (np.arange(6) + chosen.offsets).tolist() == chosen.target_ids.tolist()
    assert chosen.draft_ids(40)[[2, 30, 3]].tolist() == [0, 5, -1]
    assert chosen.coverage == pytest.approx(1.0)
    # the prompts decide among answer tokens seen once, then the lower id
    assert draft_vocabulary(conversations, 3, 40, always=[]).target_ids.tolist() == [4, 5, 30]
    assert draft_vocabulary(conversations, 3, 40, always=[]).coverage == pytest.approx(0.8)
    assert draft_vocabulary(conversations, 99, 40, always=[]).target_ids.tolist() == list(range(40))


def test_batches_hold_everything_once_within_their_size() -> None:
    lengths = [3 + (7 * index) % 40 for index in range(200)]
    batches = deal(lengths, 128, "seed")
    assert sorted(member for batch in batches for member in batch) == list(range(200))
    assert all(len(batch) * max(lengths[member] for member in batch) <= 128 for batch in batches)
    padding = sum(len(batch) * max(lengths[m] for m in batch) - sum(lengths[m] for m in batch) for batch in batches)
    assert padding < 0.1 * sum(lengths)
    assert deal(lengths, 128, "seed") == batches != deal(lengths, 128, "other seed")
    assert deal([500, 3], 128, None) == [[1], [0]]


# ---- the target as a teacher ----


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "gemma2"])
def test_features_and_distributions_are_the_models_own(family: str) -> None:
    model = tiny_model(family, torch.float32)
    target_ids = torch.tensor([0, 3, 50, 51, 159])
    target = TeachingTarget(model, facts=None, aux_layers=(0, 2), target_ids=target_ids)  # type: ignore[arg-type]
    conversations = [conversation(3, 6, seed=1), conversation(7, 4, seed=2)]
    batch = make_batch(conversations, [0, 1])
    features = target.features(batch)
    probabilities = target.probabilities(features.final)
    first = row = 0
    for prompt, answer, _ in conversations:
        with torch.no_grad():
            plain = model(torch.tensor([prompt + answer]), output_hidden_states=True, use_cache=False)
        aux = torch.cat([plain.hidden_states[0][0], plain.hidden_states[2][0]], dim=-1)
        torch.testing.assert_close(features.aux[first : first + len(aux)], aux, rtol=1e-4, atol=1e-4)
        # the first draft start's lesson is about the second answer token
        lessons = plain.logits[0, len(prompt) : -1, target_ids].softmax(-1)
        torch.testing.assert_close(probabilities[row : row + len(lessons)], lessons, rtol=1e-3, atol=1e-4)
        first, row = first + len(aux), row + len(lessons)
    assert row == len(features.final) == len(batch.start)


def test_stored_features_come_back_and_are_computed_once(tmp_path: Path) -> None:
    conversations = [conversation(3, 6, seed=1), conversation(7, 4, seed=2), conversation(2, 5, seed=3)]
    asked: list[tuple[int, ...]] = []

    def compute(batch: Any) -> Features:
        asked.append(batch.members)
        numbers = batch.ids[:, None] * torch.tensor([1.0, 2.0, 4.0])
        return Features(numbers, numbers[batch.start, :2] + 1)

    def store(identity: str = "me") -> FeatureStore:
        return FeatureStore(tmp_path / "cache", {"who": identity}, conversations, (3, 2), compute)

    batches = [make_batch(conversations, members) for members in ([2, 0], [1, 0], [0, 1, 2])]
    for batch in batches:
        for source in (store(), store()):  # the second one finds everything on disk
            found, expected = source.features(batch), compute(batch)
            asked.pop()
            torch.testing.assert_close(found.aux, expected.aux.to(torch.bfloat16))
            torch.testing.assert_close(found.final, expected.final.to(torch.bfloat16))
    assert asked == [(2, 0), (1, 0)]
    with pytest.raises(ConfigError, match="another model or data"):
        store("somebody else")


# ---- schedule and stop rule ----


def test_the_rate_rises_falls_and_the_run_stops_when_passes_bring_nothing() -> None:
    rates = [rate(share / 1000) for share in range(1001)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(1.0) and 20 <= peak <= 40 and 0.0 < rates[0] < 0.1
    assert all(a > b for a, b in zip(rates[peak:], rates[peak + 1 :], strict=False)) and 0.0 < rates[-1] < 0.05

    def stalled(*accuracies: float) -> bool:
        rows = [{"accuracy": [share], "pass_end": True} for share in accuracies]
        rows.insert(1, {"accuracy": [0.9], "pass_end": False})
        return has_stalled(TrainingState(curve=rows))

    assert not stalled(0.4, 0.4)  # only one pass was gained by
    assert not stalled(0.4, 0.4, 0.403)
    assert stalled(0.4, 0.403, 0.4015)


# ---- whole runs ----

SMALL_VOCAB = 40
WORDS = [f"w{index}" for index in range(SMALL_VOCAB - 2)]
LEARNER = replace(HEAD, vocab_size=SMALL_VOCAB, draft_vocab_size=30)
PROMPT_LEN, ANSWER_LEN, NUM_PROMPTS = 5, 20, 64


def calm_model() -> PreTrainedModel:
    """A tiny model that mostly follows every token by the next higher one, so that a head can learn it in seconds."""
    model = tiny_model("llama", torch.float32, vocab_size=SMALL_VOCAB)
    weights = dict(model.named_parameters())
    for name, weight in weights.items():
        if "o_proj" in name or "down_proj" in name:
            weight.data *= 0.02
    weights["lm_head.weight"].data.copy_(weights["model.embed_tokens.weight"].roll(1, 0))
    return model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a word-level tokenizer, as `save_pretrained` leaves them."""
    folder = tmp_path_factory.mktemp("model")
    vocabulary = {word: index for index, word in enumerate(["<unk>", "<end>", *WORDS])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>").save_pretrained(folder)
    calm_model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    """The calm model's own greedy answers."""
    model, params = calm_model(), SamplingParams(max_new_tokens=ANSWER_LEN, temperature=0.0)
    prompts = [random_prompt(PROMPT_LEN, seed, SMALL_VOCAB) for seed in range(40)]
    answers = [reference_decode(model, prompt, params, (), use_cache=True).output_ids for prompt in prompts]
    return [Conversation(prompt, tuple(ids), "made up") for prompt, ids in zip(prompts, answers, strict=True)]


@pytest.fixture(scope="module")
def make_trainer(model_folder: Path, conversations: list[Conversation]) -> Callable[..., Trainer]:
    def make(state_path: Path, **settings: Any) -> Trainer:
        model, facts = load_target(str(model_folder), dtype="float32", device=CPU, max_len=64)
        vocabulary = draft_vocabulary(conversations, LEARNER.draft_vocab_size, SMALL_VOCAB, [])
        target = TeachingTarget(model, facts, LEARNER.aux_layers, torch.from_numpy(vocabulary.target_ids))
        defaults = {
            "epochs": 3, "max_minutes": None, "batch_tokens": 100, "learning_rate": 3e-3, "unroll": 3,
            "eval_every": None, "checkpoint_every": 4, "seed": 0, "compute_dtype": "float32",
        }  # fmt: skip
        return Trainer(
            Recipe(**(defaults | settings)),
            first_head(LEARNER, target, vocabulary, seed=0),
            target,
            target.features,
            conversations[:32],
            conversations[32:],
            draft_ids=torch.from_numpy(vocabulary.draft_ids(SMALL_VOCAB)),
            identity={"rate": settings.get("learning_rate", 3e-3)},
            state_path=state_path,
            after_score=lambda trainer, is_best: None,
        )

    return make


def ignore(done: int, total: int) -> None:
    pass


def untimed(state: TrainingState) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in state.curve]


def test_a_resumed_run_repeats_an_uninterrupted_one(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole.pt")
    whole.run(ignore)

    def interrupt(done: int, total: int) -> None:
        if broken.state.step == 14:  # the last saved state is of step 12, in the second pass
            raise KeyboardInterrupt

    broken = make_trainer(tmp_path / "broken.pt")
    with pytest.raises(KeyboardInterrupt):
        broken.run(interrupt)
    resumed = make_trainer(tmp_path / "broken.pt")
    resumed.resume()
    assert (resumed.state.step, resumed.state.epoch) == (12, 1)
    resumed.run(ignore)
    assert untimed(resumed.state) == untimed(whole.state)
    for name, weight in whole.trained_head().state_dict().items():
        assert torch.equal(weight, resumed.trained_head().state_dict()[name]), name
    with pytest.raises(DataError, match=r"begun with rate = 0\.003, not 0\.1"):
        make_trainer(tmp_path / "broken.pt", learning_rate=0.1).resume()
    (tmp_path / "broken.pt").write_bytes(b"not a state")
    with pytest.raises(DataError, match="cannot read"):
        make_trainer(tmp_path / "broken.pt").resume()


def test_the_time_limit_ends_a_run(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "state.pt", max_minutes=1e-9)
    trainer.run(ignore)
    assert trainer.state.step == 0 and len(trainer.state.scores()) == 1
    trainer = make_trainer(tmp_path / "state.pt", epochs=100_000, max_minutes=0.02)
    trainer.run(ignore)
    assert trainer.state.step > 0 and trainer.state.seconds < 30.0
    assert trainer.state.scores()[-1]["step"] == trainer.state.step


def test_the_trained_head_reads_features_as_they_are(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    """The saved head, without the trainer's scaling, scores what the trainer says of it."""
    trainer = make_trainer(tmp_path / "state.pt", epochs=1)
    trainer.run(ignore)
    head, board, target = trainer.trained_head(), Scoreboard(3), trainer._target
    for batch, features in trainer._read_held_out():
        outputs = unroll(head, target.embeddings, features.aux, batch, 3)
        board.add(head, outputs, trainer._lessons(batch, features), batch)
    assert board.score().loss == pytest.approx(trainer.state.scores()[-1]["held_out_loss"], rel=1e-4)


def test_products_in_bfloat16_teach_the_same_and_weights_stay_float32(
    make_trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    trained = {}
    for dtype in ("float32", "bfloat16"):
        trained[dtype] = make_trainer(tmp_path / f"{dtype}.pt", compute_dtype=dtype)
        trained[dtype].run(ignore)
    low, full = trained["bfloat16"], trained["float32"]
    assert low.state.scores()[-1]["held_out_loss"] != full.state.scores()[-1]["held_out_loss"]
    assert low.state.scores()[-1]["held_out_loss"] == pytest.approx(full.state.scores()[-1]["held_out_loss"], rel=0.02)
    assert {weight.dtype for weight in low.trained_head().parameters()} == {torch.float32}


def test_the_plotted_curve_is_the_runs_own() -> None:
    curve = [
        {"step": 0, "held_out_loss": 5.0, "accuracy": [0.1, 0.05], "accuracy_top": 0.3},
        {"step": 10, "loss": 4.0},
        {"step": 20, "loss": 3.0},
        {"step": 20, "held_out_loss": 3.5, "accuracy": [0.4, 0.2], "accuracy_top": 0.7},
    ]
    losses, accuracies = Figure().subplots(1, 2)
    draw_loss(losses, curve)
    draw_accuracy(accuracies, curve)
    drawn = {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for panel in (losses, accuracies)
        for line in panel.get_lines()
    }
    assert drawn == {
        "training": [(10, 4.0), (20, 3.0)],
        "held out": [(0, 5.0), (20, 3.5)],
        "step 1": [(0, 0.1), (20, 0.4)],
        "step 2": [(0, 0.05), (20, 0.2)],
        "top 8 at step 1": [(0, 0.3), (20, 0.7)],
    }
    text = curve_svg(curve)
    words = {element.text for element in ElementTree.fromstring(text).iter()}
    assert {"loss (nats)", "held-out accuracy", *drawn} <= words
    assert curve_svg(curve) == text
    assert curve_svg(curve[:1])  # before the first logged step there is a first evaluation


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    rows = [
        {"prompt": " ".join(WORDS[token - 2] for token in random_prompt(6, seed, SMALL_VOCAB) if token > 1)}
        for seed in range(NUM_PROMPTS)
    ]
    return write_rows(tmp_path / "prompts.jsonl", rows)


def flags(data: Path, out: Path, model: Path, *more: str) -> list[str]:
    given = ["--model", str(model), "--max-model-len", "64", "--max-batch-size", "8", "--max-new-tokens", "24"]
    given += ["--aux-layers", "1,2,3", "--draft-vocab", "36", "--batch-tokens", "128", "--held-out", "0.2"]
    return ["train-draft", str(data), "--out", str(out), *given, *more]


def test_from_prompts_to_a_head_that_has_learnt(
    model_folder: Path, prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, cache = tmp_path / "head", ("--cache-features", str(tmp_path / "cache"), "--learning-rate", "0.004")
    assert cli.main(flags(prompts_file, out, model_folder, *cache, "--epochs", "3")) == 0
    summary = json.loads(capsys.readouterr().out)
    curve = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    scores = [row for row in curve if "accuracy" in row]
    assert scores[-1]["held_out_loss"] < 0.8 * scores[0]["held_out_loss"]
    assert all(
        after > before + 0.1 for before, after in zip(scores[0]["accuracy"], summary["best"]["accuracy"], strict=True)
    )
    assert summary["best"]["accuracy_top"] > summary["best"]["accuracy"][0]

    head = load_head(out, TargetShape(3, HIDDEN, SMALL_VOCAB))
    assert head.config.aux_layers == (1, 2, 3) and head.config.draft_vocab_size == 36
    assert head.target_ids.tolist() == sorted(set(head.target_ids.tolist()))

    loop = DecodeLoop.from_config(
        EngineConfig(
            model=str(model_folder),
            drafter="eagle3",
            draft_model=str(out),
            price="off",
            max_model_len=64,
            max_batch_size=4,
        )
    )
    params = SamplingParams(max_new_tokens=24, temperature=0.0)
    requests = [Request(f"r{seed}", random_prompt(6, 100 + seed, SMALL_VOCAB), params) for seed in range(4)]
    collect(loop, requests, concurrency=4, report=lambda done, total: None)
    assert np.mean([request.stats.acceptance_length for request in requests]) > 2.0  # untrained: hardly above 1

    (answers,) = (out / "training").glob("generations-*.jsonl")
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(rows) == NUM_PROMPTS and {row["temperature"] for row in rows} == {0.0, 0.8}
    assert ElementTree.parse(out / "curve.svg").getroot().tag.endswith("svg")
    text = (out / "README.md").read_text()
    assert f"| step 1 | {summary['best']['accuracy'][0]:.3f} |" in text and f"| unnamed | {NUM_PROMPTS} |" in text

    # the same folder is not trained over by accident, and can be trained further
    assert cli.main(flags(prompts_file, out, model_folder, *cache)) == 2
    assert "continue it with --resume" in capsys.readouterr().err
    with answers.open("a") as file:
        file.write('{"id": "row')  # a run that was stopped while it wrote
    assert cli.main(flags(prompts_file, out, model_folder, *cache, "--epochs", "4", "--resume")) == 0
    assert json.loads(capsys.readouterr().out)["steps"] > summary["steps"]
    assert len(answers.read_text().splitlines()) == NUM_PROMPTS


@pytest.mark.parametrize(
    ("content", "more", "complaint"),
    [
        ("", (), "no usable prompt"),
        ('{"prompt": "w1", "response_ids": [5]}', (), "no usable answer"),
        ('{"prompt": "w1", "response_ids": [5, 6]}', (), "too few to hold out"),
        ('{"prompt": "w1", "response_ids": [5, 6]}', ("--aux-layers", "1,9"), "no hidden state 9"),
        ('{"prompt": "w1", "response_ids": [5, 6]}', ("--chat-template", "always"), "no usable answer"),
        ('{"prompt": "w1"}', ("--chat-template", "always"), "no chat template"),
        ('{"prompt": "w1"}', ("--unroll", "0"), "--unroll must be at least 1"),
        ('{"prompt": "w1"}', ("--held-out", "1"), "--held-out must be between"),
        ('{"prompt": "w1"}', ("--learning-rate", "nan"), "--learning-rate must be"),
        ('{"prompt": "w1"}', ("--resume",), "there is no run"),
        ('{"prompt": "w1"}', ("--model", "no/such/model/here"), "no such model"),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    content: str, more: tuple[str, ...], complaint: str, model_folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data, out = tmp_path / "data.jsonl", tmp_path / "head"
    data.write_text(content)
    assert cli.main(flags(data, out, model_folder, *more)) == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and complaint in errors[0]
    assert captured.out == "" and not (out / "model.safetensors").exists()
