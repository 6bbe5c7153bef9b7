"""Decisions: who is admitted, what a step may spend, and which tree gets it. numpy and the standard library only."""
