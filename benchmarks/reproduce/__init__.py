"""`python -m benchmarks.reproduce`: tables and figures of docs/results.md from the raw files, without a model.

__main__.py   the command
page.py       generated blocks between markers
library.py    the raw files
intervals.py  paired ratios with their intervals
words.py      numbers and tables in Markdown
bars.py       the study `bars` and what it says of the first two bars
controls.py   the studies `controls`, which is the third bar, and `learning`
foresight.py  a simulation's clairvoyant shares: the fourth bar
equality.py   the study `equality`: the fifth bar; forks elsewhere beside their control
sweeps.py     the other studies
figures.py    plots
"""
