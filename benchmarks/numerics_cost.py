"""What `exact` numerics cost: seconds of a packed step of both modes, interleaved, for the default model and for every
family that is served.

    python -m benchmarks.numerics_cost --output numerics.json

Families are random models of one moderate size, so that ratios can be compared; the default model is the real one.
A step here is the target's forward alone, with logits for every row.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workload import concurrency_list, positive_int
from echo_sched.cli import Parser, run
from echo_sched.config import DEFAULT_MODEL
from echo_sched.config import NumericsName as Numerics
from echo_sched.errors import ConfigError
from echo_sched.fetch import resolve_model
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, print_json, progress_bar, show_table, write_json
from echo_sched.tree import Segment, pack

if TYPE_CHECKING:
    from echo_sched.engine.forward import Target

COLUMNS = ("model", "rows", "fast ms", "exact ms", "exact/fast", "low", "high")
MODES: tuple[Numerics, ...] = ("fast", "exact")
VOCAB_SIZE = 8192  # small: the output layer is the same for all and would hide what differs
SIZE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "pad_token_id": None,
}
WINDOW = {"sliding_window": 128}  # shorter than the context, so that it counts
PROBE_SLOTS = 2  # the probe at load packs two sequences
UNGROUPED = {"num_key_value_heads": 9}
# Family -> its config class in transformers, and what is set apart from SIZE.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", {}),
    "Qwen2": ("Qwen2Config", {**WINDOW, "use_sliding_window": True, "max_window_layers": 3}),
    "Qwen3": ("Qwen3Config", {"head_dim": 128}),
    "Qwen3-MoE": (
        "Qwen3MoeConfig",
        {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 384},
    ),
    "Mistral": ("MistralConfig", WINDOW),
    "Gemma 2": ("Gemma2Config", {**WINDOW, "head_dim": 64}),
    "Gemma 3 (text)": ("Gemma3TextConfig", {**WINDOW, "head_dim": 64}),
    "Phi-3": ("Phi3Config", WINDOW),
    "OLMo 2": ("Olmo2Config", {}),
    "Granite": ("GraniteConfig", {}),
    "SmolLM3": ("SmolLM3Config", {}),
    "GPT-2": ("GPT2Config", UNGROUPED),
    "GPT-NeoX": ("GPTNeoXConfig", UNGROUPED),
    "OPT": ("OPTConfig", {**UNGROUPED, "ffn_dim": 1536, "word_embed_proj_dim": 576}),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0. Raises ConfigError for a model or a setting that cannot be served."""
    args = _parser().parse_args(argv)
    check_output(args.output)
    if unknown := set(args.models) - {DEFAULT_MODEL, *FAMILIES}:
        raise ConfigError(
            f"--models: unknown {', '.join(sorted(unknown))}; known: {DEFAULT_MODEL}, {', '.join(FAMILIES)}"
        )
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, progress_bar() as bar:
        task = bar.add_task("models", total=len(args.models))
        for name in args.models:
            folder = resolve_model(name) if name == DEFAULT_MODEL else save_family(name, Path(scratch))
            results[name] = cost_of_exact(folder, args)
            bar.advance(task)
    document = {
        "models": results,
        "args": vars(args),
        **provenance(command_line("python -m benchmarks.numerics_cost", argv)),
    }
    write_json(args.output, document)
    rows = [
        [
            name,
            num_rows,
            *(1000 * cell[mode]["median"] for mode in MODES),
            *(cell["ratio"][key] for key in cell["ratio"]),
        ]
        for name, cells in results.items()
        for num_rows, cell in cells.items()
    ]
    show_table(f"A packed step behind {args.context} tokens, {args.dtype}", COLUMNS, rows)
    print_json({"output": args.output})
    return 0


def save_family(name: str, scratch: Path) -> str:
    """A random model of the family, and a tokenizer that is never asked, in a folder of their own."""
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    kind, more = FAMILIES[name]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**(SIZE | more)))
    folder = scratch / name.replace(" ", "-")
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    return str(folder)


def cost_of_exact(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rows -> seconds of each mode, and the ratio of neighbours in time. Rows are roots, each behind the context."""
    targets = {mode: _open(folder, mode, args) for mode in MODES}
    slots = {mode: [target.kv.allocate() for _ in range(max(args.rows))] for mode, target in targets.items()}
    cells: dict[str, Any] = {}
    for num_rows in args.rows:
        times: dict[Numerics, list[float]] = {mode: [] for mode in MODES}
        for mode in _turns(1 + args.repeats):
            roots = [Segment(slot, args.context, [0], [-1], 1) for slot in slots[mode][:num_rows]]
            start = time.perf_counter()
            targets[mode].forward(pack(roots)).cpu()  # elsewhere a forward returns before its result is there
            times[mode].append(time.perf_counter() - start)
        measured = {mode: seconds[1:] for mode, seconds in times.items()}  # the first run of a shape allocates
        ratios = [exact / fast for fast, exact in zip(measured["fast"], measured["exact"], strict=True)]
        cells[str(num_rows)] = {mode: _spread(seconds) for mode, seconds in measured.items()} | {
            "ratio": _spread(ratios)
        }
    return cells


def _open(folder: str, numerics: Numerics, args: argparse.Namespace) -> "Target":
    from echo_sched.engine.memory import resolve_device
    from echo_sched.engine.opening import open_target

    return open_target(
        folder,
        dtype=args.dtype,
        numerics=numerics,
        device=resolve_device("auto"),
        num_slots=max(PROBE_SLOTS, *args.rows),
        max_model_len=max(args.context + 1, 64),
        tail_len=1,
        kv_limit_gib=None,
    )


def _turns(repeats: int) -> Iterator[Numerics]:
    """Both modes, `repeats` times, in turn first."""
    for repeat in range(repeats):
        yield from MODES if repeat % 2 == 0 else reversed(MODES)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m benchmarks.numerics_cost",
        description="Time a packed step in fast and exact numerics, for the default model and one of every family.",
        epilog="Example: python -m benchmarks.numerics_cost --rows 1,8,32 --context 256 --output numerics.json",
    )
    known = [DEFAULT_MODEL, *FAMILIES]
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=known,
        metavar="NAME[,NAME...]",
        help=f"of {', '.join(known)} (default: all)",
    )
    parser.add_argument(
        "--rows", type=concurrency_list, default=[1, 8, 32], metavar="N[,N...]", help="requests (default: 1,8,32)"
    )
    parser.add_argument(
        "--context", type=positive_int, default=256, metavar="N", help="tokens behind every row (default: %(default)s)"
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="default: %(default)s")
    parser.add_argument("--repeats", type=positive_int, default=15, metavar="N", help="default: %(default)s")
    parser.add_argument("--output", required=True, metavar="FILE", help="JSON file to write")
    return parser


if __name__ == "__main__":
    run(main)
