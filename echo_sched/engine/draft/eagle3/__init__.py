"""EAGLE-3: drafts from the target's own hidden states (arXiv 2503.01840).

head.py        the network: fusion of target features, one decoder layer, a head over the draft vocabulary
"""
