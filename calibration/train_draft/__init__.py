"""`echo-sched train-draft`: makes an EAGLE-3 head for a target from prompts or from the target's own answers.

main.py, flags.py      the command line
run.py, start.py       from settings to a trained head, part by part; the untrained head
answers.py             the target's own answers to a file of prompts, in bulk
data.py                a generations file as token sequences, the split, the draft vocabulary
batches.py             sequences of similar length, packed
target.py, store.py    what the head learns from: hidden states and next-token distributions, computed or kept on disk
unroll.py              the head run as it will draft: several steps on its own hidden states
lessons.py             loss and held-out accuracy of those steps
trainer.py, state.py   passes over the data; what a stopped run continues from
schedule.py            the recipe: how long, how hard, and when to stop
output.py              the folder that a run leaves, with plot.py and card.py for people
"""
