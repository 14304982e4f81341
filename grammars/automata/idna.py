"""Internationalised host names: RFC 5890 to 5893 (IDNA 2008)."""

from __future__ import annotations

import re
import unicodedata

from idna import IDNAError, alabel, check_bidi, ulabel

_LDH = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?", re.ASCII)
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
_LONGEST = 253
"""Characters of a whole name, its labels encoded."""


def is_hostname(text: str) -> bool:
    """RFC 1123 names, whose labels beginning with "xn--" must be A-labels."""
    return len(text) <= _LONGEST and all(_is_ascii_label(label) for label in text.split("."))


def is_idn_hostname(text: str) -> bool:
    """Names of which each label is a host name's or a U-label."""
    # A label is never shorter encoded.
    if len(text) > _LONGEST:
        return False
    labels = _DOTS.split(text)
    if not all(_is_ascii_label(label) for label in labels if label.isascii()):
        return False
    try:
        encoded = [label if label.isascii() else alabel(label).decode() for label in labels]
        decoded = [ulabel(label) if label[:4].lower() == "xn--" else label for label in labels]
        # One label from right to left holds all of a name to the Bidi rule (RFC 5893, section 1.4).
        bidi = any(unicodedata.bidirectional(char) in ("R", "AL", "AN") for label in decoded for char in label)
        return len(".".join(encoded)) <= _LONGEST and all(check_bidi(label, check_ltr=bidi) for label in decoded)
    except IDNAError:
        return False


def _is_ascii_label(label: str) -> bool:
    if not _LDH.fullmatch(label):
        return False
    if label[2:4] != "--":
        return True
    if label[:2].lower() != "xn" or label[4:] != label[4:].lower():
        return False
    try:
        return alabel(ulabel(label)).decode() == label.lower()
    except IDNAError:
        return False
