"""A smaller causal language model with the target's tokenizer as a drafter.

vocabulary.py  do both tokenizers agree, and which token ids do both models know
opening.py     loads the model as a target is loaded, with KV of its own
drafter.py     the Drafter: true tokens, trees level by level, KV of accepted nodes kept
"""
