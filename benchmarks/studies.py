"""The studies behind docs/results.md: plain data, one command each (`python -m benchmarks.study NAME`).

Requests per concurrency and tokens per answer are sized for two hours and a half altogether on two CPU cores with
bfloat16 units, three times as long without. Where answers end at different times few requests are left in the end,
which costs whoever speculates most: the more waves of requests, the less it counts.
"""

from itertools import product

from benchmarks.study.declared import Group, Study

CHAINS = tuple(".".join("1" * length) for length in range(1, 9))
TREES = ("2.1", "2.2", "3.2", "3.2.1", "4.2.1", "3.2.2.1.1")

UNPRICED = "echo:price=off:k_max_rule=fixed:k_max=64"  # spends what it may: here the gate alone decides
PRICED = "echo"
ABLATIONS = (
    "gate=dense",
    "gate=none",
    "gate=random",
    "thresholds=single",
    "transfer=off",
    "widen=off",
)

PRICED_ABLATIONS = ("gate=none", "widen=off")  # the price leaves the gate little to decide

BARS = Study(
    "bars",
    "Does the default policy pay at every concurrency, and is it as good as the best fixed tree?",
    (
        Group(
            ("off", "echo", "best-tree"),
            {1: 4, 4: 12, 8: 24, 16: 32, 32: 64, 64: 128},
        ),
    ),
    max_new_tokens=128,  # about the median answer of this model to such prompts: shorter ones overstate the prompts
    num_repeats=5,
    num_margins=8,
)

GRID = Study(
    "grid",
    "Which fixed tree is the fastest at each concurrency?",
    tuple(
        Group(("off", *(f"tree:{shape}" for shape in shapes)), {1: 4, 4: 10, 8: 16, 16: 28, 32: 48, 64: 80}, name)
        for name, shapes in (("chains", CHAINS), ("trees", TREES))  # two, since every arm has KV of its own
    ),
    max_new_tokens=32,
    num_repeats=1,
    half="tuning",
    most_nodes=512,
)

CONTROLS = Study(
    "controls",
    "What do gate, thresholds, transfer, width and price each contribute?",
    (
        Group(
            ("off", UNPRICED, *(f"{UNPRICED}:{change}" for change in ABLATIONS), PRICED,
             *(f"{PRICED}:{change}" for change in PRICED_ABLATIONS)),
            {8: 24},
        ),
    ),
    max_new_tokens=32,
    num_repeats=5,
)  # fmt: skip

K_MAX = Study(
    "kmax",
    "How many draft nodes may a step verify before it costs more than it brings, and does `auto` find that number?",
    (
        Group(
            (
                "off",
                *(f"echo:price=off:k_max_rule=fixed:k_max={nodes}" for nodes in (0, 4, 8, 16, 32, 64, 128)),
                "echo:k_max=128",
            ),
            {4: 8, 16: 24},
        ),
    ),
    max_new_tokens=24,
    num_repeats=5,
)

READY = Study(
    "ready",
    "What does it cost to keep the drafter ready in steps that draft nothing?",
    (Group(("off", "table:shapes=1="), {1: 4, 8: 16, 32: 64}),),  # its table drafts nothing for any batch
    max_new_tokens=24,
    num_repeats=5,
)

TEMPERATURE = Study(
    "temperature",
    "What is left of the gain when tokens are sampled?",
    tuple(
        Group(("off", "echo", "echo:live_acceptance=off"), {4: 12, 16: 32}, f"T={temperature:g}", temperature)
        for temperature in (0.0, 0.7, 1.0)
    ),
    max_new_tokens=24,
    num_repeats=5,
    num_margins=8,
)

LEARNED = ("explore=0", "live_costs=off", "live_acceptance=off")

LEARNING = Study(
    "learning",
    "What do exploring, and learning while serving, cost and bring?",
    (Group(("off", PRICED, *(f"{PRICED}:{change}" for change in LEARNED)), {4: 12, 16: 32}),),
    max_new_tokens=48,
    num_repeats=5,
)

DOMAINS = Study(
    "domains",
    "What are thresholds worth on other text than they were fitted on?",
    tuple(
        Group(
            ("off", *(f"{base}@{fitted}" for base, fitted in product((UNPRICED, PRICED), ("maths", "chat")))),
            {8: 16},
            name,
            sets=sets,
        )
        for name, sets in (("maths", ("gsm8k",)), ("chat", ("mt-bench",)))
    ),
    max_new_tokens=32,
    num_repeats=5,
)

EQUALITY = Study(
    "equality",
    "Does every policy emit plain decoding's tokens, bit for bit?",
    tuple(
        Group(("off", "echo", "goodput", UNPRICED), {4: 12}, f"T={temperature:g}", temperature)
        for temperature in (0.0, 1.0)
    ),
    max_new_tokens=32,
    num_repeats=1,
    num_margins=8,
    settings={"numerics": "exact"},
)

STUDIES = {
    study.name: study for study in (GRID, BARS, CONTROLS, K_MAX, READY, TEMPERATURE, LEARNING, DOMAINS, EQUALITY)
}  # in the order in which they can run: `bars` reads what `grid` found
