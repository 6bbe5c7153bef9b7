"""The requests that have not ended, by their ids, each with the call that waits for it.

Lives in the event loop's thread. Knows nothing of the engine.
"""

from collections.abc import Sequence

from echo_sched.errors import RequestError
from echo_sched.types import Request
from server.generation import Generation, Output

Open = tuple[Generation, Output]


class OpenRequests:
    def __init__(self) -> None:
        self._by_id: dict[str, Open] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def check_names(self, requests: Sequence[Request]) -> None:
        """Raises RequestError where a name of one of `requests` is taken."""
        taken = {name for _, output in self._by_id.values() for name in _names(output.request)}
        for request in requests:
            for name in _names(request) & taken:
                raise RequestError(f"rid {name!r} is in use by a request that has not ended", "rid")

    def add(self, generation: Generation) -> None:
        self._by_id.update({output.request.request_id: (generation, output) for output in generation.outputs})

    def remove(self, output: Output) -> None:
        del self._by_id[output.request.request_id]

    def find(self, request: Request) -> Open | None:
        """None for a request that was aborted while the engine's report was under way, even if its id is taken anew."""
        found = self._by_id.get(request.request_id)
        return found if found is not None and found[1].request is request else None

    def named(self, name: str) -> list[Open]:
        """What a client calls so: a request, or all answers to a prompt."""
        return [(generation, output) for generation, output in self.all() if name in _names(output.request)]

    def all(self) -> list[Open]:
        return list(self._by_id.values())

    def take_all(self) -> list[Generation]:
        """The calls that wait, each once. Nothing is open any more."""
        generations = {id(generation): generation for generation, _ in self._by_id.values()}
        self._by_id.clear()
        return list(generations.values())


def _names(request: Request) -> set[str]:
    """What a client may call a request."""
    return {request.request_id} if request.group is None else {request.request_id, request.group}
