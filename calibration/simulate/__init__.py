"""`echo-sched simulate`: policies tried on a recorded trace, with a cost table for a clock and without a model.

flags.py        the command line
main.py         from a trace and arms to a report
recorded.py     a trace as a drafter
replay.py       one step through the real plan and allocation
simulation.py   whole requests, admitted and served in a closed loop
simulated.py    what that gives, step by step and request by request
clairvoyant.py  what a scheduler that knew the answers would have accepted
figures.py      numbers of a run
tables.py       what a person is shown
"""
