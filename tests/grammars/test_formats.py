from __future__ import annotations

import calendar
import ipaddress
import random

import pytest

from grammars.automata.dfa import ALL
from grammars.automata.formats import FORMATS, INEXACT, format_accepts, format_dfa

CASES = {
    "date": (["2024-02-29", "2000-02-29", "0000-12-31"], ["2023-02-29", "1900-02-29", "2024-2-1", "2024-13-01", ""]),
    "time": (
        ["08:30:06Z", "23:59:60z", "08:30:06.5+00:20", "23:59:60-00:00"],
        ["24:00:00Z", "08:30:60Z", "08:30:06", "8:30:06Z", "08:30:06,5Z", "08:30:06+24:00", "23:59:60+00:01"],
    ),
    "date-time": (
        ["2024-02-29T00:00:00Z", "1985-04-12t23:20:50.52z", "1990-12-31T15:59:50.123-08:00"],
        [
            "2023-02-29T00:00:00Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00Z",
            "2024-01-01T00:00:00",
            "٢024-01-01T00:00:00Z",
        ],
    ),
    "duration": (
        ["P1Y2M3DT4H5M6S", "P2W", "PT36H", "P1DT12H", "P0D"],
        ["P", "PT", "P1YT", "P1Y2W", "PT1D", "P1Y2D", "PT1H2S", "PT0.5S", "-P1D", "1D"],
    ),
    "email": (
        ["a@b", "te.s~t+x@example.com", '"joe @\\" x"@example.com', "x@[127.0.0.1]", "x@[IPv6:::1]"],
        ["", "a", "@b", "a@", ".a@b", "a.@b", "a..b@c", "a b@c", "a@-b", "a@b_c", "x@[1.2.3.300]", "é@b.c"],
    ),
    "idn-email": (["실례@실례.테스트", "é@b.c", "a@b.c"], ["a", "@b", "a@", "a＠b"]),
    "hostname": (
        ["a", "www.example.com", "1host", "a--b.c", "x" * 63, "xn--nxasmq6b"],
        ["", "-a", "a-", "a..b", ".a", "a.", "a_b", "x" * 64, "ab--c", "é", "xn--x"],
    ),
    "idn-hostname": (
        ["실례.테스트", "例え。jp", "l\u00b7l", "a.b"],
        ["", "-a", "a\u00b7l", "\u302e실례", "a..b", "0\u0627", "a\u034fb", "ab\U0001d17b"],
    ),
    "ipv4": (
        ["0.0.0.0", "255.255.255.255", "192.168.0.1"],
        ["256.0.0.1", "01.2.3.4", "1.2.3", "1.2.3.4.5", "1.2.3.4 "],
    ),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1", "1:2:3:4:5:6:1.2.3.4", "1::8", "1:2:3:4:5:6:7::"],
        [
            "",
            ":",
            ":::",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7:8:9",
            "1::2::3",
            "12345::",
            "::1%eth0",
            "1:2:3:4:5:6:7:1.2.3.4",
        ],
    ),
    "uuid": (
        ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
        ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"],
    ),
    "uri": (
        [
            "http://a/b?c#d",
            "urn:a:b",
            "mailto:a@b",
            "ldap://[2001:db8::7]/c=GB?x",
            "http://u:p@h:80/%20",
            "a:",
            "file:///x",
        ],
        ["", "/a", "//a", "a b", "http://a b", "http://[::1", "1a:b", "http://a:b/", "http://é/", "a:%4"],
    ),
    "uri-reference": (["", "a", "/a/b", "//h/p", "?q", "#f", "./a:b", "http://a"], ["\\a", "a b", "#a#b", "1:b", "é"]),
    "iri": (["http://ƒøø.ßår/?∂=π", "urn:é"], ["/é", "http://a b", "é"]),
    "iri-reference": (["é", "/ƒ", "#π"], ["\\é", "a b"]),
    "uri-template": (
        ["http://a/{x:1}/{y*}", "{+a,b}", "", "a%41b"],
        ["{", "}", "{}", "{a,}", "a b", "{x:0}", "{x:12345}"],
    ),
    "json-pointer": (["", "/", "/a~0b/~1", "//"], ["a", "/~", "/~2", "#/a"]),
    "relative-json-pointer": (["0", "1/a", "12#", "0/"], ["", "/a", "-1", "01", "0##", "+1"]),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_texts_of_a_format(name: str) -> None:
    dfa = format_dfa(name)
    assert dfa is not None
    good, bad = CASES[name]
    for text in good:
        assert dfa.accepts(text) and format_accepts(name, text), text
    for text in bad:
        assert not format_accepts(name, text), text
        assert not dfa.accepts(text) or name in INEXACT, text


def test_unknown_formats_are_annotations() -> None:
    assert format_dfa("color") is None and format_accepts("color", "anything")
    assert set(CASES) | {"regex"} == FORMATS
    assert format_dfa("regex") == ALL and format_accepts("regex", "a+") and not format_accepts("regex", "(")


def test_every_day_of_the_calendar_and_no_other() -> None:
    dfa = format_dfa("date")
    assert dfa is not None
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 2100, 9996, 9999):
        for month in range(14):
            days = calendar.monthrange(year, month)[1] if 1 <= month <= 12 else 0
            for day in range(33):
                assert dfa.accepts(f"{year:04}-{month:02}-{day:02}") == (1 <= day <= days)


def test_a_leap_second_is_the_last_of_a_utc_day_in_every_offset() -> None:
    for hour in range(24):
        for minute in (0, 14, 29, 44, 59):
            for offset in (0, 1, 30, 60, 90, 480, 1439):
                for sign in (1, -1):
                    text = f"{hour:02}:{minute:02}:60{'+' if sign > 0 else '-'}{offset // 60:02}:{offset % 60:02}"
                    wanted = (hour * 60 + minute - sign * offset) % 1440 == 1439
                    assert format_accepts("time", text) == wanted, text
                    assert format_accepts("date-time", "2016-12-31T" + text) == wanted


def test_long_fractions_are_valid_and_not_offered() -> None:
    for name, text in (("time", "10:00:00.{}Z"), ("date-time", "2026-03-01T10:00:00.{}+01:00")):
        language = format_dfa(name)
        assert language is not None
        for digits, offered in ((9, True), (32, True), (33, False), (300, False)):
            assert language.accepts(text.format("1" * digits)) == offered
            assert format_accepts(name, text.format("1" * digits))
        assert not format_accepts(name, text.format("1" * 33 + "x"))


@pytest.mark.parametrize("name", ["ipv4", "ipv6"])
def test_addresses_are_those_of_ipaddress(name: str) -> None:
    rnd = random.Random(5)
    dfa = format_dfa(name)
    assert dfa is not None
    judge = ipaddress.IPv4Address if name == "ipv4" else ipaddress.IPv6Address
    parts = [":", "::", "0", "ff", "1234", "abcde", "1.2.3.4", ".", "255", "256", "00"]
    seen = 0
    for _ in range(20_000):
        text = "".join(rnd.choice(parts) for _ in range(rnd.randrange(1, 16)))
        if name == "ipv6" and rnd.random() < 0.7:
            groups = [f"{rnd.randrange(65536):x}" for _ in range(rnd.randrange(5, 9))]
            text = ":".join(groups)
            if rnd.random() < 0.6:
                at = rnd.randrange(len(text))
                text = text[:at] + "::" + text[at + rnd.randrange(3) :]
        elif name == "ipv4" and rnd.random() < 0.7:
            text = ".".join(str(rnd.randrange(300)) for _ in range(rnd.choice([3, 4, 4, 4, 5])))
        try:
            judge(text)
            wanted = True
        except ValueError:
            wanted = False
        seen += wanted
        assert dfa.accepts(text) == wanted, text
    assert seen > 500
