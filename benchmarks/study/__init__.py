"""`python -m benchmarks.study NAME`: one declared study, measured on a loaded model and kept as raw JSON.

__main__.py   the command
declared.py   what a study may say; the studies themselves are in benchmarks/studies.py
prompt_sets.py  the evaluation prompts, in two halves
resolve.py    from a declaration to arms and blocks of requests
run.py        trial after trial, a file after each
cell.py       one trial in plain numbers
file.py       the file, and how an unfinished one goes on
"""
