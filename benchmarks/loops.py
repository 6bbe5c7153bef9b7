"""Which output tokens are inside a loop: text that goes round in circles, which flatters any drafter.

A token is inside a loop when the 8-gram that ends with it has occurred three times or more so far in that request's
output, this occurrence included. Occurrences may overlap; the prompt does not count. Knows tokens only.
"""

from collections import Counter, deque

NGRAM_LEN, NUM_OCCURRENCES = 8, 3


class LoopDetector:
    """Follows one request's output, token by token. Remembers every 8-gram, so as much as the output is long."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=NGRAM_LEN)
        self._occurrences = Counter[tuple[int, ...]]()

    def push(self, token: int) -> bool:
        """Take the next token. Returns whether it is inside a loop."""
        self._latest.append(token)
        if len(self._latest) < NGRAM_LEN:
            return False
        ngram = tuple(self._latest)
        self._occurrences[ngram] += 1
        return self._occurrences[ngram] >= NUM_OCCURRENCES
