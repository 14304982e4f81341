"""Internationalised host names: RFC 5890 to 5893 (IDNA 2008), judged with the Unicode tables of Python."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_LDH = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?", re.ASCII)
_DOTS = re.compile("[.\u3002\uff0e\uff61]")

# RFC 5892, section 2.6
_VALID = {0xDF, 0x3C2, 0x6FD, 0x6FE, 0xF0B, 0x3007}
_CONTEXT = {0x200C, 0x200D, 0xB7, 0x375, 0x5F3, 0x5F4, 0x30FB, *range(0x660, 0x66A), *range(0x6F0, 0x6FA)}
_DISALLOWED = {0x640, 0x7FA, 0x302E, 0x302F, *range(0x3031, 0x3036), 0x303B}


def is_hostname(text: str) -> bool:
    """RFC 1123 names, whose labels beginning with "xn--" must be A-labels."""
    if len(text) > 253:
        return False
    return all(_is_ascii_label(label) for label in text.split("."))


def is_idn_hostname(text: str) -> bool:
    """Names of which each label is a host name's or a U-label."""
    labels = _DOTS.split(text)
    length = len(labels) - 1
    unicode_labels = []
    for label in labels:
        if label.isascii():
            if not _is_ascii_label(label):
                return False
            length += len(label)
            if label[:4].lower() == "xn--":
                label = label[4:].encode("ascii").decode("punycode")
        else:
            encoded = _encoded(label)
            if encoded is None or not _is_u_label(label):
                return False
            length += len(encoded)
        unicode_labels.append(label)
    if length > 253:
        return False
    if any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for label in unicode_labels for char in label):
        return all(_bidi(label) for label in unicode_labels)
    return True


def _is_ascii_label(label: str) -> bool:
    if not _LDH.fullmatch(label):
        return False
    if label[2:4] != "--":
        return True
    if label[:2].lower() != "xn" or label[4:] != label[4:].lower():
        return False
    try:
        decoded = label[4:].encode("ascii").decode("punycode")
    except (UnicodeError, ValueError, OverflowError):
        return False
    if decoded.isascii() or any(0xD800 <= ord(char) <= 0xDFFF for char in decoded):
        return False
    return _encoded(decoded) == label.lower() and _is_u_label(decoded) and _bidi_alone(decoded)


def _encoded(label: str) -> str | None:
    """The A-label, None where it is too long."""
    try:
        out = "xn--" + label.encode("punycode").decode("ascii")
    except UnicodeError:
        return None
    return out if len(out) <= 63 else None


def _bidi_alone(label: str) -> bool:
    return not any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for char in label) or _bidi(label)


def _is_u_label(label: str) -> bool:
    """RFC 5891, section 4.2.3, without the Bidi rule."""
    if not label or label[0] == "-" or label[-1] == "-" or label[2:4] == "--":
        return False
    if unicodedata.normalize("NFC", label) != label or unicodedata.category(label[0])[0] == "M":
        return False
    return all(_is_valid(char) or (ord(char) in _CONTEXT and _in_context(label, at)) for at, char in enumerate(label))


@lru_cache(4096)
def _is_valid(char: str) -> bool:
    """PVALID of RFC 5892, section 3."""
    code = ord(char)
    if code in _VALID:
        return True
    if code in _DISALLOWED or code in _CONTEXT:
        return False
    category = unicodedata.category(char)
    if category == "Cn" or 0x1100 <= code <= 0x11FF or 0xA960 <= code <= 0xA97C or 0xD7B0 <= code <= 0xD7FB:
        return False
    if code < 0x80:
        return char == "-" or char.isdigit() or "a" <= char <= "z"
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", char).casefold())
    if folded != char or 0xFE00 <= code <= 0xFE0F or 0x1D165 <= code <= 0x1D172 or 0x20D0 <= code <= 0x20FF:
        return False
    return category in ("Ll", "Lu", "Lo", "Nd", "Lm", "Mn", "Mc")


def _script(char: str) -> str:
    return unicodedata.name(char, "").split(" ")[0]


def _in_context(label: str, at: int) -> bool:
    """The rules of RFC 5892, appendix A."""
    code = ord(label[at])
    before, after = label[at - 1 : at], label[at + 1 : at + 2]
    if code in (0x200C, 0x200D):
        if before and unicodedata.combining(before) == 9:  # virama
            return True
        return code == 0x200C and _joins(label[:at], label[at + 1 :])
    if code == 0xB7:
        return before == after == "l"
    if code == 0x375:
        return bool(after) and _script(after) == "GREEK"
    if code in (0x5F3, 0x5F4):
        return bool(before) and _script(before) == "HEBREW"
    if code == 0x30FB:
        return any(_script(char) in ("HIRAGANA", "KATAKANA", "CJK") and ord(char) != code for char in label)
    arabic, extended = range(0x660, 0x66A), range(0x6F0, 0x6FA)
    other = extended if code in arabic else arabic
    return not any(ord(char) in other for char in label)


# Arabic letters that join on their right side alone (Unicode's ArabicShaping), the commonest ones
_RIGHT_JOINING = {0x622, 0x623, 0x624, 0x625, 0x627, 0x629, *range(0x62F, 0x633), 0x648, *range(0x671, 0x674)}
_RIGHT_JOINING |= {*range(0x675, 0x678), *range(0x688, 0x69A), 0x6C0, *range(0x6C3, 0x6CC), 0x6CD, 0x6CF, 0x6D2, 0x6D3}


def _joins(before: str, after: str) -> bool:
    """Whether a zero width non-joiner stands between letters that would join."""
    left = next((char for char in reversed(before) if unicodedata.category(char) != "Mn"), "")
    right = next((char for char in after if unicodedata.category(char) != "Mn"), "")
    return bool(left and right) and _joining(left) and ord(left) not in _RIGHT_JOINING and _joining(right)


def _joining(char: str) -> bool:
    return _script(char) in ("ARABIC", "SYRIAC", "MANDAIC", "NKO", "MONGOLIAN") and unicodedata.category(char) == "Lo"


def _bidi(label: str) -> bool:
    """RFC 5893, section 2."""
    kinds = [unicodedata.bidirectional(char) for char in label]
    while kinds and kinds[-1] == "NSM":
        kinds.pop()
    if not kinds:
        return False
    if kinds[0] in ("R", "AL"):
        allowed = {"R", "AL", "AN", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"}
        ends = kinds[-1] in ("R", "AL", "EN", "AN")
        return set(kinds) <= allowed and ends and not ("EN" in kinds and "AN" in kinds)
    if kinds[0] == "L":
        return set(kinds) <= {"L", "EN", "ES", "CS", "ET", "ON", "BN", "NSM"} and kinds[-1] in ("L", "EN")
    return False
