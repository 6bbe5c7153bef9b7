"""EAGLE-3: drafts from the target's own hidden states (arXiv 2503.01840).

head.py        the network: fusion of target features, one decoder layer, a head over the draft vocabulary
layouts.py     config.json of both public layouts, checked against the target
aux_layers.py  which hidden states of the target it reads, told in four ways
checkpoint.py  heads in folders: load, check, save, fingerprint
drafter.py     the Drafter: own KV, pairs of true features and tokens, trees level by level
"""

from echo_sched.engine.draft.eagle3.aux_layers import default_aux_layers
from echo_sched.engine.draft.eagle3.checkpoint import load_head, save_head
from echo_sched.engine.draft.eagle3.head import Attention, Eagle3Config, Eagle3Head
from echo_sched.engine.draft.eagle3.layouts import TargetShape

__all__ = ["Attention", "Eagle3Config", "Eagle3Head", "TargetShape", "default_aux_layers", "load_head", "save_head"]
