"""`echo-sched simulate`: policies on a recorded trace, at loads and on machines that need not be at hand.

Tables go to stderr, the document to --output and its curves to --plot, and a headline to stdout as one JSON line. Loads
no model.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from calibration.simulate.clairvoyant import BUDGETS, NUM_STEPS, accepted_per_step, draw_steps, share, yardsticks
from calibration.simulate.figures import figures
from calibration.simulate.flags import load_cost, load_matching_profile, parse
from calibration.simulate.plot import simulation_svg
from calibration.simulate.recorded import RecordedOffers
from calibration.simulate.simulation import Simulation
from calibration.simulate.tables import show_clairvoyant, show_figures
from calibration.trace import OfferTrace, read_trace
from echo_sched.arms import REFERENCE, Arm, parse_arms, settings_of
from echo_sched.cli import run
from echo_sched.config import EngineConfig
from echo_sched.errors import ConfigError
from echo_sched.flags import engine_config
from echo_sched.plots import save_text
from echo_sched.provenance import command_line, provenance
from echo_sched.report import check_output, print_json, progress_bar, write_json
from echo_sched.scheduler.cost import CostTable
from echo_sched.scheduler.policy import Policy, PolicySettings, make_policy
from echo_sched.scheduler.profile import Profile


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 with a document at --output. Raises ConfigError, DataError, ProfileError."""
    args = parse(argv)
    for flag in ("output", "plot"):
        if getattr(args, flag) is not None:
            check_output(getattr(args, flag), f"--{flag}")
    engine_config(args)  # bad flags are told before a large file is read
    trace = read_trace(args.trace)
    shape = {"max_depth": trace.header.max_depth, "branching": trace.header.branching}
    arms = parse_arms(args.policies, engine_config(args, policy=REFERENCE, **shape), "--policies")
    _check_arms(arms, trace)
    measured = load_matching_profile(args.profile, trace.header)
    cost = load_cost(args.cost_curve, measured)
    document = {
        **simulated(trace, arms, replace(measured, cost=cost), cost, args.concurrency, args.num_requests, args.seed),
        "settings": settings_of(arms),
        "trace": _described(args.trace, trace),
        "cost": {"source": args.cost_curve or args.profile, **cost.to_json()},
        "provenance": provenance(command_line("echo-sched simulate", argv)),
    }
    if args.output is not None:
        write_json(args.output, document)
    if args.plot is not None:
        save_text(args.plot, simulation_svg(document))
    show_figures(document)
    show_clairvoyant(document)
    print_json({"output": args.output, "ratios": document["ratios"], "clairvoyant_shares": _shares(document)})
    return 0


def simulated(
    trace: OfferTrace,
    arms: Sequence[Arm],
    profile: Profile,
    cost: CostTable,
    concurrencies: Sequence[int],
    num_requests: int | None,
    seed: int,
) -> dict[str, Any]:
    """`arms`, `ratios` and `clairvoyant` of the document, by arm and concurrency; the same for the same arguments."""
    recorded = RecordedOffers(trace)
    cells: dict[str, dict[str, Any]] = {arm.name: {} for arm in arms}
    foresight: dict[str, Any] = {}
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=len(concurrencies) * (len(arms) + 1))
        for concurrency in concurrencies:
            for arm in arms:
                simulation = Simulation(
                    recorded,
                    trace.header.requests,
                    make_policy(PolicySettings.of(arm.config), profile),
                    cost,
                    concurrency=concurrency,
                    num_requests=num_requests or max(len(trace.header.requests), 2 * concurrency),
                    chunk_tokens=arm.config.chunk_tokens,
                    max_children=arm.config.branching,
                )
                cells[arm.name][str(concurrency)] = figures(simulation.run())
                bar.advance(task)
            foresight[str(concurrency)] = _clairvoyant(recorded, arms, profile, concurrency, seed)
            bar.advance(task)
    return {"arms": cells, "ratios": _ratios(cells), "clairvoyant": foresight}


def _clairvoyant(
    recorded: RecordedOffers, arms: Sequence[Arm], profile: Profile, batch_size: int, seed: int
) -> dict[str, Any]:
    """By K_max / B: accepted tokens per step of every rule, and each arm's share of what foresight gains."""
    if not recorded.num_pools:
        return {}
    steps = draw_steps(recorded, batch_size, seed)
    found: dict[str, Any] = {}
    for budget in BUDGETS:
        k_max = max(1, round(budget * batch_size))
        rules = yardsticks(recorded, steps, k_max, seed)
        cells = {}
        for arm in arms:
            policy = _unpriced(arm.config, profile, k_max)
            accepted = accepted_per_step(recorded, steps, policy, arm.config.branching)
            cells[arm.name] = {"accepted_per_step": accepted, "share": share(accepted, rules)}
        found[f"{budget:g}"] = {"k_max": k_max, "num_steps": NUM_STEPS, "accepted_per_step": rules, "arms": cells}
    return found


def _unpriced(config: EngineConfig, profile: Profile, k_max: int) -> Policy:
    """The arm's policy where only accepted tokens count: it may spend all that the yardsticks spend."""
    settings = replace(PolicySettings.of(config), k_max=k_max, k_max_rule="fixed", price="off")
    return make_policy(settings, profile)


def _check_arms(arms: Sequence[Arm], trace: OfferTrace) -> None:
    for arm in arms:
        for name in ("max_depth", "branching"):
            recorded = getattr(trace.header, name)
            if getattr(arm.config, name) > recorded:
                raise ConfigError(f"--policies {arm.name}: {name} exceeds the trace's {recorded}: no more was recorded")


def _ratios(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        arm: {
            concurrency: cell["output_throughput"] / cells[REFERENCE][concurrency]["output_throughput"]
            for concurrency, cell in by_concurrency.items()
        }
        for arm, by_concurrency in cells.items()
        if arm != REFERENCE
    }


def _shares(document: dict[str, Any]) -> dict[str, dict[str, dict[str, float | None]]]:
    """arm -> concurrency -> K_max / B -> share"""
    return {
        arm: {
            concurrency: {budget: cell["arms"][arm]["share"] for budget, cell in budgets.items()}
            for concurrency, budgets in document["clairvoyant"].items()
        }
        for arm in document["ratios"]
    }


def _described(path: str, trace: OfferTrace) -> dict[str, Any]:
    header = trace.header
    return {
        "file": Path(path).name,
        "model": asdict(header.model),
        "drafter": asdict(header.drafter),
        "max_depth": header.max_depth,
        "branching": header.branching,
        "temperature": header.temperature,
        "num_requests": len(header.requests),
        "num_output_tokens": sum(request.num_output_tokens for request in header.requests),
    }


if __name__ == "__main__":
    run(main)
