"""`python -m echo_sched.train_draft`: a thin door into calibration/, as echo_sched/calibrate.py is.

A trained head serves this package by name, and training stands outside it by what it may import.
"""

from calibration.train_draft.main import main
from echo_sched.cli import run

__all__ = ["main"]

if __name__ == "__main__":
    run(main)
