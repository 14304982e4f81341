"""Decoding of image parts to pixels as a projector takes them: 8-bit RGB, upright, nothing transparent.

Runs in a helper process. Pillow decodes only files whose header has been read and found within the limits; its own
guard against decompression bombs stands behind them.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from PIL import Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from server.chat.images.header import BadImage, ImageHeader, read_container
from server.chat.types import ImageLimits
from server.engine.types import RgbImage
from server.wire.records import ImagePart, WireError

_FORMATS = {
    "image/png": PngImagePlugin.PngImageFile.format,
    "image/jpeg": JpegImagePlugin.JpegImageFile.format,
    "image/webp": WebPImagePlugin.WebPImageFile.format,
}

SCANS = 100
"""Scans of a progressive JPEG. Encoders write about ten; thousands fit into a small file, each an image's work."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition that turns an image of each Exif orientation upright."""


def decode(images: Sequence[tuple[str, ImagePart]], limits: ImageLimits) -> list[RgbImage]:
    """The pixels of image parts, each given with the field it stands in.

    Raises WireError: `invalid-request` where one is not what it is declared to be or cannot be decoded, and
    `quota-exceeded` where it is over a limit. All limits are checked before the first is decoded.
    """
    headers = [(at, part.mime_type, _read(at, part, limits)) for at, part in images]
    if sum(header.width * header.height for _, _, header in headers) > limits.pixels:
        raise WireError("quota-exceeded", f"the images have more than {limits.pixels} pixels", reason="images")
    return [_pixels(at, _FORMATS[mime_type], header, limits) for at, mime_type, header in headers]


def _read(at: str, part: ImagePart, limits: ImageLimits) -> ImageHeader:
    try:
        header = read_container(part.mime_type, base64.b64decode(part.data, validate=True))
    except BadImage as error:
        raise WireError("invalid-request", f"{at} is no {part.mime_type}: {error}") from None
    if header.frames > limits.frames:
        more = "is an animation" if limits.frames == 1 else f"has more than {limits.frames} frames"
        raise WireError("quota-exceeded", f"{at} {more}", reason="images")
    if header.scans > SCANS:
        raise WireError("quota-exceeded", f"{at} has more than {SCANS} scans", reason="images")
    return header


def _pixels(at: str, format: str, header: ImageHeader, limits: ImageLimits) -> RgbImage:
    Image.MAX_IMAGE_PIXELS = limits.pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(BytesIO(header.data), formats=[format]) as image:
                if image.size != (header.width, header.height):
                    raise BadImage("its sizes disagree")
                image.load()
                flat = _flat(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise anything at all on bytes from strangers
        reason = str(error) if isinstance(error, BadImage) else "the image data is damaged or cut short"
        raise WireError("invalid-request", f"{at} cannot be decoded: {reason}") from None
    turn = _UPRIGHT.get(header.orientation)
    upright = flat.transpose(turn) if turn is not None else flat
    return RgbImage.of(*upright.size, upright.tobytes())


def _flat(image: Image.Image) -> Image.Image:
    """As RGB, over white where it is transparent."""
    if image.mode.startswith("I"):
        # 16 bits of grey. Pillow's own conversion cuts off what is above 255.
        grey = np.asarray(image)
        flat = Image.fromarray((grey >> 8).astype(np.uint8)).convert("RGB")
        flat.paste("white", mask=Image.fromarray(grey == image.info.get("transparency", -1)))
        return flat
    if not image.has_transparency_data:
        return image.convert("RGB")
    rgba = image.convert("RGBA")
    flat = Image.new("RGB", image.size, "white")
    flat.paste(rgba, mask=rgba.getchannel("A"))
    return flat
