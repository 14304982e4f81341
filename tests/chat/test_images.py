"""Image files to pixels: every way a file may come, and what files from strangers are answered."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from server.chat.images.decode import decode
from server.chat.images.header import BadImage, read_container
from server.chat.types import ImageLimits
from server.engine.types import RgbImage
from server.wire.records import WireError
from tests.pictures import JPEG, PNG, WEBP, chunk, exif, part, pixels, raw_png, saved, zeros

TYPES = (PNG, JPEG, WEBP)
LOSSLESS = {PNG: {}, WEBP: {"lossless": True, "exact": True}, JPEG: {"quality": 100, "subsampling": 0}}
LIMITS = ImageLimits()
EXIF = b"Exif\0\0"
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a[:, ::-1].swapaxes(0, 1),
}
"""Exif 2.3: where the first row and the first column of what is stored belong."""


def picture(data: bytes, mime_type: str = PNG, limits: ImageLimits = LIMITS) -> RgbImage:
    (found,) = decode([("field", part(data, mime_type))], limits)
    return found


def array(picture: RgbImage) -> np.ndarray:
    return np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)


def refusal(data: bytes, mime_type: str = PNG, limits: ImageLimits = LIMITS) -> WireError:
    with pytest.raises(WireError) as caught:
        picture(data, mime_type, limits)
    return caught.value


@pytest.mark.parametrize("mime_type", TYPES)
def test_pixels_come_row_by_row_from_the_top_left(mime_type: str) -> None:
    given = pixels(30, 50)
    found = picture(saved(Image.fromarray(given), mime_type, **LOSSLESS[mime_type]), mime_type)
    assert (found.width, found.height) == (50, 30)
    tolerance = 4 if mime_type == JPEG else 0
    assert np.abs(array(found).astype(int) - given).max() <= tolerance
    assert found == RgbImage.of(found.width, found.height, found.rgb)


@pytest.mark.parametrize("mime_type", TYPES)
@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("order", "<>")
def test_every_orientation_comes_upright(mime_type: str, orientation: int, order: str) -> None:
    given = pixels(16, 24)
    data = saved(Image.fromarray(given), mime_type, exif=EXIF + exif(orientation, order=order), **LOSSLESS[mime_type])
    want = UPRIGHT[orientation](given)
    found = array(picture(data, mime_type))
    assert found.shape == want.shape
    assert np.abs(found.astype(int) - want).max() <= 4


def test_transparency_is_flattened_over_white() -> None:
    half = np.array([[[255, 0, 0, 0], [255, 0, 0, 255], [0, 0, 0, 128]]], np.uint8)
    for mime_type in (PNG, WEBP):
        found = array(picture(saved(Image.fromarray(half), mime_type, **LOSSLESS[mime_type]), mime_type))
        assert found.tolist() == [[[255, 255, 255], [255, 0, 0], [127, 127, 127]]]
    palette = Image.fromarray(np.array([[0, 1]], np.uint8), "L").convert("P")
    palette.putpalette([9, 9, 9, 7, 7, 7])
    assert array(picture(saved(palette, PNG, transparency=0))).tolist() == [[[255] * 3, [7] * 3]]
    grey = Image.fromarray(np.array([[3, 4]], np.uint8))
    assert array(picture(saved(grey, PNG, transparency=3))).tolist() == [[[255] * 3, [4] * 3]]
    colour = Image.fromarray(np.array([[[1, 2, 3], [1, 2, 4]]], np.uint8))
    assert array(picture(saved(colour, PNG, transparency=(1, 2, 3)))).tolist() == [[[255] * 3, [1, 2, 4]]]


def test_sixteen_bits_become_the_upper_eight() -> None:
    deep = np.array([[0x0000, 0x00FF, 0x0100, 0x8012, 0xFFFF]], np.uint16)
    grey = saved(Image.fromarray(deep), PNG)
    assert array(picture(grey))[..., 0].tolist() == [[0, 0, 1, 0x80, 0xFF]]
    assert array(picture(saved(Image.fromarray(deep), PNG, transparency=0x8012)))[0, 3].tolist() == [255] * 3
    line = bytes(1) + struct.pack(">3H", 0x1234, 0x5678, 0x9ABC)
    assert array(picture(raw_png(1, 1, zlib.compress(line), depth=16))).tolist() == [[[0x12, 0x56, 0x9A]]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_of_png(mode: str) -> None:
    found = picture(saved(Image.fromarray(pixels(9, 7)).convert(mode), PNG))
    assert (found.width, found.height, len(found.rgb)) == (7, 9, 9 * 7 * 3)


def test_interlaced_and_progressive_files() -> None:
    # An interlaced file of one pixel has one pass of one pixel.
    assert array(picture(raw_png(1, 1, zlib.compress(bytes([0, 5, 6, 7])), interlaced=True))).tolist() == [[[5, 6, 7]]]
    progressive = jpeg(progressive=True)
    assert 2 < read_container(JPEG, progressive).scans < 20
    assert read_container(JPEG, jpeg()).scans == 1
    assert picture(scanned(progressive, 50), JPEG).width == 40


def test_cmyk_is_shown_as_it_prints() -> None:
    inks = np.zeros((16, 16, 4), np.uint8)
    inks[:, 8:, 0] = 255
    found = array(picture(saved(Image.fromarray(inks, "CMYK"), JPEG, quality=100), JPEG))
    assert np.abs(found[0, 0].astype(int) - 255).max() <= 4
    assert np.abs(found[0, 15].astype(int) - [0, 255, 255]).max() <= 4


def test_the_same_picture_has_the_same_digest_and_another_another() -> None:
    given = Image.fromarray(pixels(9, 7))
    one = picture(saved(given, PNG))
    assert picture(saved(given, WEBP, **LOSSLESS[WEBP]), WEBP).digest == one.digest
    assert picture(saved(Image.fromarray(pixels(9, 7, seed=1)), PNG)).digest != one.digest
    flat = np.zeros((2, 3, 3), np.uint8)
    assert (
        picture(saved(Image.fromarray(flat), PNG)).digest
        != picture(saved(Image.fromarray(flat.swapaxes(0, 1)), PNG)).digest
    )


@pytest.mark.parametrize("declared", TYPES)
@pytest.mark.parametrize("real", [*TYPES, "image/gif", "image/bmp", "image/tiff"])
def test_the_signature_must_be_that_of_the_declared_type(declared: str, real: str) -> None:
    data = saved(Image.fromarray(pixels(4, 4)), real)
    if declared == real:
        assert picture(data, declared).width == 4
        return
    error = refusal(data, declared)
    assert error.code == "invalid-request"
    assert error.message.startswith(f"field is no {declared}: ")


def webp(kind: bytes, payload: bytes) -> bytes:
    body = kind + struct.pack("<I", len(payload)) + payload + bytes(len(payload) % 2)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def lossless(side: int, data: bytes) -> bytes:
    """A lossless WebP of this size, less one, around any data."""
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", side | side << 14) + data)


def scanned(data: bytes, more: int) -> bytes:
    """A progressive JPEG with its last scan so many times more."""
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * more + data[-2:]


HUGE_FIELDS = [struct.pack("<HHII", tag, 7, 7_000_000, 8) for tag in range(0x9000, 0x9000 + 5000)]


def animation(mime_type: str) -> bytes:
    frames = [Image.fromarray(pixels(8, 8, seed=seed)) for seed in (0, 20, 40)]
    return saved(frames[0], mime_type, save_all=True, append_images=frames[1:], **LOSSLESS[mime_type])


def jpeg(*, exif: bytes = b"", progressive: bool = False) -> bytes:
    more = {"exif": exif} if exif else {}
    return saved(Image.fromarray(pixels(40, 40)), JPEG, quality=90, progressive=progressive, **more)


def resized(data: bytes, height: int, width: int = 40) -> bytes:
    """A JPEG whose frame header says another size."""
    at = data.index(b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def twice(data: bytes) -> bytes:
    """A JPEG with two frame headers."""
    at = data.index(b"\xff\xc0")
    (length,) = struct.unpack_from(">H", data, at + 2)
    return data[:at] + data[at : at + 2 + length] * 2 + data[at + 2 + length :]


HOSTILE: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "png bomb": (lambda: raw_png(100_000, 100_000, zeros(1 << 20)), PNG, "quota-exceeded"),
    "png of the largest size there is": (lambda: raw_png(2**32 - 1, 2**32 - 1, b""), PNG, "quota-exceeded"),
    "interlaced bomb": (lambda: raw_png(65_535, 65_535, zeros(1 << 20), interlaced=True), PNG, "quota-exceeded"),
    "png cut in its data": (lambda: saved(Image.fromarray(pixels(64, 64)), PNG)[:-40], PNG, "invalid-request"),
    "png whose data is too short": (lambda: raw_png(64, 64, zlib.compress(bytes(100))), PNG, "invalid-request"),
    "png whose data is no zlib": (lambda: raw_png(8, 8, b"nothing compressed at all"), PNG, "invalid-request"),
    "png without data": (lambda: raw_png(8, 8, b""), PNG, "invalid-request"),
    "png of no width": (lambda: raw_png(0, 8, zeros(8)), PNG, "invalid-request"),
    "png of no height": (lambda: raw_png(8, 0, zeros(8)), PNG, "invalid-request"),
    "png of an unknown colour type": (lambda: raw_png(8, 8, zeros(264), colour=5), PNG, "invalid-request"),
    "png of a depth it cannot have": (lambda: raw_png(8, 8, zeros(264), depth=7), PNG, "invalid-request"),
    "png with two headers": (
        lambda: raw_png(8, 8, zeros(8 * 25), more=[chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 9, 8, 2, 0, 0, 0))]),
        PNG,
        "invalid-request",
    ),
    "png with an unknown critical chunk": (
        lambda: raw_png(8, 8, zeros(8 * 25), more=[chunk(b"CgBI", bytes(4))]),
        PNG,
        "invalid-request",
    ),
    "png with a wrong checksum": (lambda: raw_png(8, 8, zeros(8 * 25))[:-14] + bytes(14), PNG, "invalid-request"),
    "png of endless data": (lambda: raw_png(8, 8, zeros(64 << 20)), PNG, "decoded"),
    "png of a signature alone": (lambda: b"\x89PNG\r\n\x1a\n", PNG, "invalid-request"),
    "animated png": (lambda: animation(PNG), PNG, "quota-exceeded"),
    "jpeg cut in its data": (lambda: jpeg()[:-60], JPEG, "invalid-request"),
    "jpeg cut in its header": (lambda: jpeg()[:60], JPEG, "invalid-request"),
    "jpeg of a signature alone": (lambda: b"\xff\xd8\xff", JPEG, "invalid-request"),
    "jpeg without a frame": (lambda: b"\xff\xd8\xff\xda\x00\x02" + bytes(64) + b"\xff\xd9", JPEG, "invalid-request"),
    "jpeg of no height": (lambda: resized(jpeg(), 0), JPEG, "invalid-request"),
    "jpeg of two frames": (lambda: twice(jpeg()), JPEG, "invalid-request"),
    "jpeg bomb": (lambda: resized(jpeg(), 65_500, 65_500), JPEG, "quota-exceeded"),
    "jpeg of thousands of scans": (lambda: scanned(jpeg(progressive=True), 5000), JPEG, "quota-exceeded"),
    "jpeg of markers without end": (lambda: b"\xff\xd8" + b"\xff" * (1 << 20), JPEG, "invalid-request"),
    "jpeg of empty segments": (lambda: b"\xff\xd8" + b"\xff\xfe\x00\x02" * 400_000, JPEG, "invalid-request"),
    "animated webp": (lambda: animation(WEBP), WEBP, "quota-exceeded"),
    "webp cut": (lambda: saved(Image.fromarray(pixels(64, 64)), WEBP)[:-20], WEBP, "invalid-request"),
    "webp of noise": (lambda: lossless(7, random.Random(1).randbytes(99)), WEBP, "invalid-request"),
    "webp of another kind": (lambda: webp(b"ALPH", bytes(40)), WEBP, "invalid-request"),
    "webp bomb": (lambda: lossless(16_383, bytes(64)), WEBP, "quota-exceeded"),
    "webp of a giant canvas": (lambda: webp(b"VP8X", bytes(4) + b"\xff" * 6), WEBP, "quota-exceeded"),
    "webp of a signature alone": (lambda: b"RIFF\0\0\0\0WEBP", WEBP, "invalid-request"),
    "a page": (lambda: b"<!doctype html><svg onload=alert(1)>", PNG, "invalid-request"),
    "one byte": (lambda: b"\0", JPEG, "invalid-request"),
}  # fmt: skip
"""What a stranger may send: how it is made, as what it is declared, how it is answered."""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_have_their_error(name: str) -> None:
    make, mime_type, code = HOSTILE[name]
    if code == "decoded":
        assert picture(make(), mime_type).width == 8
        return
    error = refusal(make(), mime_type)
    assert error.code == code, error.message
    assert error.extra == ({"reason": "images"} if code == "quota-exceeded" else {})
    assert "field" in error.message or "pixels" in error.message


def test_metadata_never_reaches_the_decoder() -> None:
    """Thousands of fields that each claim the same megabytes; profiles and texts that inflate without end."""
    block = exif(6, entries=HUGE_FIELDS)
    assert len(block) < 65_000
    assert picture(jpeg(exif=EXIF + block), JPEG).height == 40
    bomb = zeros(64 << 20)
    chunks = [
        chunk(b"iCCP", b"profile\0\0" + bomb),
        chunk(b"zTXt", b"Comment\0\0" + bomb),
        chunk(b"iTXt", b"Comment\0\1\0\0\0" + bomb),
        chunk(b"eXIf", block + bytes(1 << 20)),
    ]
    data = raw_png(4, 2, zeros(2 * 13), more=chunks)
    found = picture(data)
    assert (found.width, found.height) == (2, 4)
    assert len(read_container(PNG, data).data) < 200
    assert b"Exif" not in read_container(JPEG, jpeg(exif=EXIF + block)).data


def test_an_unreadable_orientation_leaves_the_picture_as_it_is() -> None:
    for block in (b"", b"II", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff", b"XX*\0", exif(9), exif(0)):
        found = picture(raw_png(4, 2, zeros(2 * 13), more=[chunk(b"eXIf", block)]))
        assert (found.width, found.height) == (4, 2)


def test_limits_hold_for_all_images_together_and_before_any_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    ten = raw_png(10, 10, zeros(310))
    limits = ImageLimits(pixels=200)
    assert len(decode([("a", part(ten)), ("b", part(ten))], limits)) == 2
    opened: list[object] = []
    monkeypatch.setattr(Image, "open", lambda *_, **__: opened.append(1))
    with pytest.raises(WireError, match="more than 200 pixels") as caught:
        decode([("a", part(ten)), ("b", part(ten)), ("c", part(raw_png(1, 1, b"")))], limits)
    assert caught.value.code == "quota-exceeded"
    with pytest.raises(WireError, match="c is no image/png") as caught:
        decode([("a", part(ten)), ("c", part(b"no"))], limits)
    assert caught.value.code == "invalid-request"
    assert not opened


@pytest.mark.parametrize("mime_type", [PNG, WEBP])
def test_an_animation_within_the_limit_shows_its_first_frame(mime_type: str) -> None:
    data = animation(mime_type)
    assert read_container(mime_type, data).frames == 3
    assert refusal(data, mime_type, ImageLimits(frames=2)).message == "field has more than 2 frames"
    found = array(picture(data, mime_type, ImageLimits(frames=3)))
    assert found.tolist() == pixels(8, 8).tolist()


def test_a_damaged_file_is_a_picture_or_an_error_of_ours() -> None:
    """Bytes changed, cut and doubled at random: nothing but the two stated errors ever comes out."""
    chance = random.Random(3)
    whole = [(saved(Image.fromarray(pixels(24, 24)), t, exif=EXIF + exif(6), **LOSSLESS[t]), t) for t in TYPES]
    codes = {"decoded": 0, "invalid-request": 0, "quota-exceeded": 0}
    for _ in range(1500):
        data, mime_type = chance.choice(whole)
        broken = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(broken)) if chance.random() < 0.5 else chance.randrange(min(64, len(broken)))
            broken[at] = chance.randrange(256)
        if chance.random() < 0.2:
            del broken[chance.randrange(len(broken)) :]
        try:
            picture(bytes(broken), mime_type)
            codes["decoded"] += 1
        except WireError as error:
            codes[error.code] += 1
    assert all(codes.values()), codes


@pytest.mark.parametrize("mime_type", TYPES)
def test_every_beginning_of_a_file_is_refused(mime_type: str) -> None:
    data = saved(Image.fromarray(pixels(8, 8)), mime_type)
    end = len(data) - (2 if mime_type == JPEG else 1)
    for length in range(end):
        error = refusal(data[:length] or b"\0", mime_type)
        assert error.code == "invalid-request", length


def test_reading_a_header_takes_linear_time_and_keeps_nothing_of_it() -> None:
    many = b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))])
    many += chunk(b"tEXt", b"") * 300_000
    with pytest.raises(BadImage, match="cut short"):
        read_container(PNG, many)
