"""Where decisions (scheduler) and tensors (engine) meet: the only package that knows both halves.

decode.py     DecodeLoop: add, cancel, step
requests.py   who waits and who runs, and what each has been given
grow.py       trees, level by level: drafter and allocation in turn
rows.py       requests as packed rows, and back
intake.py     whether a request can be served at all
emission.py   one more token for a request, and whether it ends there
records.py    what a step did, in plain numbers
phases.py     seconds per phase of a step
live.py       scheduling settings that change while requests run
facts.py      what is loaded, for people, for the server and for profiles
assembly.py   a loop from a config
scoring.py    what the target alone says of a sequence
self_check.py whether a draft head fits the target
"""

from echo_sched.loop.decode import DecodeLoop

__all__ = ["DecodeLoop"]
