"""Options of one generation that the wire's request has no word for, for the APIs beside NAP-LLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.wire.complete import Continuation
from server.wire.records import ReasoningEffort, Requirements


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Nothing asked is what NAP-LLM asks. Whoever fills this in has checked it; what it does to the output is the
    runtime's business alone, so that every API has one settlement, one consent and one set of limits."""

    connection: str | None = None
    """Key of the connection to use, in place of the request's handle (which is not looked at then)."""
    requirements: Requirements | None = None
    """Abilities that the connection must have. Where none is named, the first that can is used, as by `select`."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `server.engine.sampling.params.Sampling` that take the place of the connection's own."""
    response_schema: Mapping[str, Any] | bool | None = None
    """JSON Schema of the answer, which comes as the text of that JSON. It need not describe an object."""
    allowed_tools: frozenset[str] | None = None
    """The tools that may be called, where not all that are described may."""
    parallel: bool = True
    """A turn may hold more than one call."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are no part of it."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these tokens, as OpenAI's API has it: -100 bans one, 100 all but forces it."""
    grammar: str | None = None
    """GBNF that the answer's text follows, where the owner lets callers bring their own."""
    raw_prompt: str | tuple[int, ...] | None = None
    """Text or tokens to be continued as they stand, in place of the request's messages: no template is asked."""
    thinking: bool | None = None
    """Switches the model's reasoning on or off where its template can; without effect where it cannot."""
    reasoning_effort: ReasoningEffort | None = None
    """The nearest that the model takes is used; without effect on a model that takes none."""
    thinking_budget: int | None = None
    """Tokens of reasoning after which the model is brought to the end of it; 0: at once."""
    template_options: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template (`chat_template_kwargs` of vLLM and llama-server)."""
    reasoning_history: bool = False
    """The `thinking` parts of the turns in the loop of calls that goes on are shown to a model that is trained to get
    them back. The caller vouches for them."""
    idle_deadline: float | None = None
    """Seconds without a token after which the generation is given up, in place of the server's deadline for all."""
    logprobs: int | None = None
    """How many of the likeliest tokens to tell with each token of the answer's text (`LiveGeneration.logprobs`)."""
    lenient: bool = False
    """A history is carried as nearly as can be where it cannot be taken as it stands (`chat.PromptRequest`)."""
    names: Sequence[str] = ()
    """The caller's own names of the request's messages, where these are not their indices."""
    continuations: Mapping[int, Continuation] | None = None
    """Those that came with the request's messages, by their index. None: nobody wants any, and none is made."""
