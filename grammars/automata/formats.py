"""The formats of JSON Schema (2020-12 Validation, section 7.3) as automata, and judges for what no automaton says.

`format_dfa` is what the grammar offers, `format_accepts` what validation demands. They differ for these formats only:
`hostname`, `idn-hostname` and `idn-email` (the length of a whole name, and what Punycode decodes to, are left to
validation), `regex` (any string, judged by the reader of patterns), `time` and `date-time` (a leap second is offered
in UTC alone, and accepted in every offset, and fractions of a second end after 32 digits).
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

from grammars.automata.dfa import ALL, DFA
from grammars.automata.idna import is_hostname, is_idn_hostname
from grammars.automata.operations import difference
from grammars.automata.regex import is_pattern
from grammars.automata.regex_nfa import pattern_dfa

BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
"""Texts in base64 (RFC 4648, section 4), for `contentEncoding`."""

_HEX = "[0-9A-Fa-f]"

# RFC 3339, section 5.6 and appendix A
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOURS = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.[0-9]{1,32})?"  # more are valid, but a model that repeats itself would never end them
_ZONE = f"(?:[Zz]|[+-]{_HOURS}:[0-5][0-9])"
_TIME = f"(?:{_HOURS}:[0-5][0-9]:[0-5][0-9]{_FRACTION}{_ZONE}|23:59:60{_FRACTION}(?:[Zz]|[+-]00:00))"
_D_SECOND = "[0-9]+S"
_D_MINUTE = f"[0-9]+M(?:{_D_SECOND})?"
_D_HOUR = f"[0-9]+H(?:{_D_MINUTE})?"
_D_TIME = f"T(?:{_D_HOUR}|{_D_MINUTE}|{_D_SECOND})"
_D_MONTH = "[0-9]+M(?:[0-9]+D)?"
_D_DATE = f"(?:[0-9]+D|{_D_MONTH}|[0-9]+Y(?:{_D_MONTH})?)(?:{_D_TIME})?"
_DURATION = f"P(?:{_D_DATE}|{_D_TIME}|[0-9]+W)"

# RFC 3986, section 3.2.2; RFC 4291, section 2.2
_OCTET = "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = f"{_HEX}{{1,4}}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"


def _ipv6() -> str:
    forms = [f"(?:{_H16}:){{6}}{_LS32}", f"::(?:{_H16}:){{5}}{_LS32}"]
    for groups in range(5):  # at most groups + 1 groups before "::", then 4 - groups and the last 32 bits
        forms.append(f"(?:(?:{_H16}:){{0,{groups}}}{_H16})?::(?:{_H16}:){{{4 - groups}}}{_LS32}")
    forms.append(f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}")
    forms.append(f"(?:(?:{_H16}:){{0,6}}{_H16})?::")
    return f"(?:{'|'.join(forms)})"


_IPV6 = _ipv6()

# RFC 1123, section 2.1 and RFC 1035, section 2.3.4; a hyphen pair in the third place is kept for "xn--" (RFC 5890)
_LABEL = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_IDN_LABEL = r"[0-9A-Za-z\u00B7-\u3001\u3003-\uD7FF\uF900-\uFF0D\uFF10-\uFF60\uFF62-\uFFDC\u{10000}-\u{3FFFF}]"
_IDN_CHAR = r"[0-9A-Za-z\u00B7-\u3001\u3003-\uD7FF\uF900-\uFF0D\uFF10-\uFF60\uFF62-\uFFDC\u{10000}-\u{3FFFF}-]"
_IDN_NAME = f"(?:{_IDN_LABEL}(?:{_IDN_CHAR}*{_IDN_LABEL})?)"
_IDN_HOSTNAME = rf"{_IDN_NAME}(?:[.\u3002\uFF0E\uFF61]{_IDN_NAME})*"

# RFC 5321, section 4.1.2; RFC 6531 for the international ones
_ATEXT = r"[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]"
_QTEXT = r"(?:[ !#-\[\]-~]|\\[ -~])"
_LITERAL_ADDRESS = rf"\[(?:{_IPV4}|IPv6:{_IPV6})\]"
_SUB_DOMAIN = "[0-9A-Za-z](?:[0-9A-Za-z-]*[0-9A-Za-z])?"
_EMAIL = rf'(?:{_ATEXT}+(?:\.{_ATEXT}+)*|"{_QTEXT}*")@(?:{_SUB_DOMAIN}(?:\.{_SUB_DOMAIN})*|{_LITERAL_ADDRESS})'
_UTEXT = r"[0-9A-Za-z!#$%&'*+/=?^_`{|}~\u0080-\u{10FFFF}-]"
_UQTEXT = r"(?:[ !#-\[\]-~\u0080-\u{10FFFF}]|\\[ -~])"
_IDN_EMAIL = rf'(?:(?:{_UTEXT})+(?:\.{_UTEXT}+)*|"{_UQTEXT}*")@(?:{_IDN_HOSTNAME}|{_LITERAL_ADDRESS})'


def _uri(reference: bool, international: bool) -> str:
    """RFC 3986, appendix A; RFC 3987, section 2.2."""
    more = (
        r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"
        + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
        + r"\u{E1000}-\u{EFFFD}"
        if international
        else ""
    )
    private = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}" if international else ""
    escape = f"%{_HEX}{{2}}"
    plain = rf"0-9A-Za-z._~{more}"
    sub = "!$&'()*+,;="
    pchar = rf"(?:[{plain}{sub}:@-]|{escape})"
    userinfo = rf"(?:[{plain}{sub}:-]|{escape})*"
    future = rf"[Vv]{_HEX}+\.[0-9A-Za-z._~{sub}:-]+"
    host = rf"(?:\[(?:{_IPV6}|{future})\]|(?:[{plain}{sub}-]|{escape})*)"
    authority = rf"(?:{userinfo}@)?{host}(?::[0-9]*)?"
    rest = f"(?:/{pchar}*)*"
    absolute = f"/(?:{pchar}+{rest})?"
    query = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    uri = f"[A-Za-z][0-9A-Za-z+.-]*:(?://{authority}{rest}|{absolute}|{pchar}+{rest}|){query}"
    if not reference:
        return uri
    no_colon = rf"(?:[{plain}{sub}@-]|{escape})+"
    return f"(?:{uri}|(?://{authority}{rest}|{absolute}|{no_colon}{rest}|){query})"


# RFC 6570, section 2
_VARCHAR = f"(?:[0-9A-Za-z_]|%{_HEX}{{2}})"
_VARSPEC = rf"{_VARCHAR}(?:\.?{_VARCHAR})*(?::[1-9][0-9]{{0,3}}|\*)?"
_URI_TEMPLATE = (
    rf"(?:[^\x00-\x20\x22%<>\\^`{{|}}\x7F-\x9F\uFDD0-\uFDEF]|%{_HEX}{{2}}"
    rf"|\{{[+#./;?&=,!@|]?{_VARSPEC}(?:,{_VARSPEC})*\}})*"
)

# RFC 6901; draft-bhutton-relative-json-pointer-00
_POINTER = "(?:/(?:[^/~]|~[01])*)*"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _IDN_EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _IDN_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
FORMATS = frozenset([*_PATTERNS, "uri", "uri-reference", "iri", "iri-reference", "regex"])
"""The formats that are asserted; every other name is an annotation."""
INEXACT = frozenset(["hostname", "idn-hostname", "idn-email", "regex"])
"""Formats whose automaton accepts more than the format: a completed value needs `format_accepts` as well."""


_LONG_FRACTION = re.compile(r"(\.[0-9]{32})[0-9]+")


@cache
def format_dfa(name: str) -> DFA | None:
    """The language that the grammar offers for a format; None for a name that is none of `FORMATS`."""
    if name == "regex":
        return ALL
    if name in ("uri", "uri-reference", "iri", "iri-reference"):
        pattern = _uri(name.endswith("-reference"), name.startswith("iri"))
    elif name in _PATTERNS:
        pattern = _PATTERNS[name]
    else:
        return None
    language = pattern_dfa(f"^(?:{pattern})$")
    if name == "hostname":
        language = difference(language, pattern_dfa(r"(?:^|\.)(?![Xx][Nn])..--"))
    language.name = name
    return language


def format_accepts(name: str, text: str) -> bool:
    """Whether a string has a format, in full. True for unknown formats."""
    if name == "regex":
        return is_pattern(text)
    if name == "hostname":
        return is_hostname(text)
    if name == "idn-hostname":
        return is_idn_hostname(text)
    language = format_dfa(name)
    if language is None:
        return True
    if name in ("time", "date-time"):
        text = _LONG_FRACTION.sub(r"\1", text)
    if name in ("time", "date-time") and ":60" in text:
        return language.accepts(_without_leap_second(text))
    if name == "idn-email" and language.accepts(text):
        domain = text.rpartition("@")[2]
        return domain.startswith("[") or is_idn_hostname(unicodedata.normalize("NFC", domain))
    return language.accepts(text)


def _without_leap_second(text: str) -> str:
    """A time whose second is 60 in the last minute of the UTC day, with 59 in its place; others unchanged."""
    head, _, tail = text.partition(":60")
    hours, minutes = head[-5:-3], head[-2:]
    zone = tail.lstrip(".0123456789")
    digits = [hours, minutes] if zone in ("Z", "z") else [hours, minutes, zone[1:3], zone[4:]]
    if any(len(part) != 2 or not (part.isascii() and part.isdigit()) for part in digits) or head[-3:-2] != ":":
        return text
    offset = 0 if zone in ("Z", "z") else int(zone[1:3]) * 60 + int(zone[4:])
    utc = int(hours) * 60 + int(minutes) - (offset if zone[0] != "-" else -offset)
    if int(hours) > 23 or utc % 1440 != 1439:
        return text
    return f"{head}:59{tail}"
