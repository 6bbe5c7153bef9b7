"""`echo-sched advise`: which tree to draft on this machine for these prompts, or none, from measurement.

flags.py      the command line
main.py       from prompts to a document and a sentence
shapes.py     the trees that are tried, and the arms that prune
trial.py      one arm at one concurrency, once: seconds and counts
siblings.py   what non-first siblings bring
commit.py     what moving an accepted path costs
compare.py    arms in turn, medians and ratios
verdict.py    numbers to advice, with reasons
tables.py     what a person is shown
"""
