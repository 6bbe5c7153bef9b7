"""Gives one request one more token, and says whether that ends it: EOS, a stop id, a stop string, a grammar that is
complete, or the token limit.

Checked token by token on the accepted path, so nothing after a stop is emitted or counted. Knows no tree and no model.
"""

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from echo_sched.engine.grammar import Grammar
from echo_sched.engine.processors import History, make_history
from echo_sched.text import TextStream
from echo_sched.types import FinishReason, Request, TokenEvent, TokenLogprobs


class Output(NamedTuple):
    """What grows with a request's output ids, from its arrival to its end."""

    text: TextStream
    history: History | None  # the walk that draws a token adds it
    logprobs: list[TokenLogprobs]  # what no event has carried yet, here and below
    prompt_logprobs: list[TokenLogprobs]

    @property
    def grammar(self) -> Grammar | None:
        return None if self.history is None else self.history.grammar


def begin_output(
    request: Request, decode: Callable[[Sequence[int]], str], eos_ids: Set[int], grammar: Grammar | None
) -> Output:
    """The output of a request that has none yet. `decode` heeds `skip_special_tokens`; `grammar` has begun."""
    params = request.params
    text = TextStream(decode, params.stop, not params.no_stop_trim, params.min_new_tokens)
    return Output(text, make_history(params, request.prompt_ids, eos_ids, grammar), [], [])


def take_event(request: Request, tokens: Sequence[int], output: Output) -> TokenEvent:
    """What the stream is told after a step."""
    text = output.text.take(final=request.finish is not None)
    logprobs, prompt_logprobs = tuple(output.logprobs), tuple(output.prompt_logprobs)
    output.logprobs.clear()
    output.prompt_logprobs.clear()
    return TokenEvent(request, tuple(tokens), text, request.finish, logprobs, prompt_logprobs)


def is_stop_id(request: Request, token: int, eos_ids: Set[int]) -> bool:
    """EOS (unless ignored) and the request's own stop ids end it; as draft nodes they are leaves."""
    return (token in eos_ids and not request.params.ignore_eos) or token in request.params.stop_token_ids


def emit_token(request: Request, token: int, output: Output, eos_ids: Set[int]) -> FinishReason | None:
    """Append the token to the request's output and text. A stop id is output, but not text unless `no_stop_trim`.

    The output's history has the token already.
    """
    request.output_ids.append(token)
    stopped = is_stop_id(request, token, eos_ids)
    matched = output.text.push(token) if not stopped or request.params.no_stop_trim else None
    if stopped:
        request.finish = FinishReason("stop", token)
    elif matched is not None:
        request.finish = FinishReason("stop", matched)
    elif output.grammar is not None and output.grammar.complete:
        request.finish = FinishReason("stop")
    elif request.num_remaining == 0:
        request.finish = FinishReason("length")
    return request.finish
