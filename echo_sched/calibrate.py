"""`python -m echo_sched.calibrate`: a thin door into calibration/, the one import against the arrows.

A calibration belongs beside the scheduler it serves by name, and outside it by what it may import.
"""

from calibration.main import main
from echo_sched.cli import run

__all__ = ["main"]

if __name__ == "__main__":
    run(main)
