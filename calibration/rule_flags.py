"""Flags of `echo-sched calibrate` that say by which rules checkpoints and thresholds are fitted. Starts nothing."""

import argparse
from typing import Literal, get_args

from echo_sched.config import EngineConfig
from echo_sched.scheduler.depth_fit import DEFAULT_AUC_CUT, DEFAULT_DROP_CUT, CheckpointRule

ThresholdRule = Literal["throughput", "youden"]


def add_rule_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--checkpoint-rule",
        choices=get_args(CheckpointRule),
        default="auc",
        help="what makes a depth a checkpoint. auc: confidence surely tells there whether the path comes so far; drop: "
        "acceptance surely falls there, from the share of paths that passed the depth above (default: auc)",
    )
    add(
        "--auc-cut",
        type=float,
        default=DEFAULT_AUC_CUT,
        metavar="X",
        help=f"what a checkpoint's AUC must surely reach; 0.5 is a coin (default: {DEFAULT_AUC_CUT})",
    )
    add(
        "--drop-cut",
        type=float,
        default=DEFAULT_DROP_CUT,
        metavar="X",
        help=f"what the fall in acceptance must surely reach with --checkpoint-rule drop (default: {DEFAULT_DROP_CUT})",
    )
    add(
        "--threshold-rule",
        choices=get_args(ThresholdRule),
        default="throughput",
        help="throughput: per load, what makes replayed steps fastest by the measured costs; youden: one threshold per "
        "depth for every load, which separates best and knows no costs (default: throughput)",
    )
    add(
        "--k-max",
        type=int,
        default=EngineConfig.model_fields["k_max"].default,
        metavar="N",
        help="K_max as you will serve: loads are K_max / batch size (default: %(default)s)",
    )
