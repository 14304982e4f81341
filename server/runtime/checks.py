"""Checks of one request against what its connection supports and what the owner allows."""

from __future__ import annotations

from server.chat import Capabilities, PreparedPrompt
from server.config import Limits
from server.runtime.failures import blind, too_long
from server.runtime.options import GenerationOptions
from server.runtime.served_model import ServedModel
from server.wire.records import GenerationRequest, ImagePart, NamedTool, WireError


def check_supported(request: GenerationRequest, options: GenerationOptions, capabilities: Capabilities) -> None:
    """Raises `unsupported` where the connection cannot do what the request needs."""
    if (request.format == "json" or options.response_schema is not None) and not capabilities.json:
        raise WireError("unsupported", "this connection does not support format json")
    if not capabilities.images and any(isinstance(part, ImagePart) for m in request.messages for part in m.content):
        raise blind()
    if request.tools:
        if not capabilities.tools:
            raise WireError("unsupported", "this connection does not support tools")
        choice = request.tool_choice or "auto"
        mode = "tool" if isinstance(choice, NamedTool) else choice
        if mode not in capabilities.tool_choice_modes:
            raise WireError("unsupported", f"this connection does not support the tool choice mode {mode}")


def check_temperature(request: GenerationRequest, connection: ServedModel) -> None:
    """Raises `unsupported` where the connection's model does not take the temperature that is asked for."""
    supports = connection.supports
    if request.temperature is None:
        return
    if not supports.temperature:
        raise WireError("unsupported", "this connection does not support temperature")
    if connection.parameters.reasons and not supports.temperature_with_reasoning:
        raise WireError("unsupported", "this connection does not support temperature while its model reasons")
    if not 0 <= request.temperature <= supports.temperature_max:
        raise WireError("unsupported", f"temperature must be from 0 to {supports.temperature_max:g}")


def check_images(request: GenerationRequest, limits: Limits) -> None:
    """Raises `quota-exceeded` where the request has too many images or too large a one."""
    images = [part for m in request.messages for part in m.content if isinstance(part, ImagePart)]
    if len(images) > limits.images:
        raise WireError("quota-exceeded", f"the request has more than {limits.images} images", reason="images")
    if any(image.size > limits.image_bytes for image in images):
        raise WireError("quota-exceeded", f"an image is larger than {limits.image_bytes} bytes", reason="images")


def check_fits(prepared: PreparedPrompt, context_length: int) -> None:
    """Raises `quota-exceeded` where the prompt leaves no room for an answer; `context_length` 0: not known yet."""
    # One place must be left for the first token of the answer. The engine alone
    # knows how many tokens an image takes; it takes one at least.
    if 0 < context_length <= len(prepared.tokens) + len(prepared.images):
        raise too_long()
