"""Values that strangers put where a text, a number, a time or a cursor is expected."""

from __future__ import annotations

import base64
from typing import Final


def cursor(content: bytes) -> str:
    """A cursor whose content is this, as the lists of the API write theirs."""
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


# As they stand in an address, quoted already.
CURSORS: Final = tuple(
    cursor(content)
    for content in (
        b"", b"[]", b"null", b"{}", b"[false]", b'[false,"x"]', b"[false,-1]", b"[true,99999999999999999999]",
        b"[false,9223372036854775808]", b'[true,"\\u0000"]', b'[false,"\\ud800"]', b"[false,1e400]", b"[true,1.5]",
        b"[0,1]", b"\xff\xfe", b"[" * 3000, b'[false,"' + b"x" * 3000 + b'"]', b"[false,1,2]",
    )
)  # fmt: skip
WORDS: Final = (
    "%00", "a%00b", "%ED%A0%80", "%FF", "%C0%80", "%0A%0D", "%1B%5B31m", "1e400", "-1e400", "NaN", "nan", "inf",
    "-Infinity", "-1", "0", "%C2%B2", "%D9%A3", "2147483648", "9223372036854775807", "9223372036854775808", "9" * 25,
    "9" * 1000, "-" + "9" * 25, "0001-01-01T00:00:00%2B14:00", "9999-12-31T23:59:59-14:00", "0000-00-00", "1e18",
    "253402300800", "-62135596801", "x" * 600, "../../etc/passwd", "%5B", "%7B%22a%22:1%7D", "a&a=b", "%25%30%30",
    "'", "%27%3B--",
)  # fmt: skip
# As they stand in a JSON document, written out already.
JSON: Final = (
    '"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\udc00x"', '"\\ud83d\\ude00"', "1e400", "-1e400", "NaN", "Infinity",
    "-Infinity", "-1", "0", "1.5", "2147483648", "9223372036854775807", "9223372036854775808", "9" * 25, "9" * 400,
    "9" * 5000, "1e308", "-1e308", "5e-324", '"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59-14:00"',
    '"9999-12-31T23:59:59Z"',
    '"1e400"', '"²"', '"' + "x" * 5000 + '"', '"\\n"', '""', '" "', "[]", "{}", "[null]", '[{"a": [1]}]', '["\\ud800"]',
    '{"\\u0000": 1}', '{"\\ud800": 1}', '{"": ""}', '{"a": NaN}', "[" * 60 + "]" * 60, "true", "null",
)  # fmt: skip
HEADERS: Final = {
    "Idempotency-Key": ("\x00", "x" * 201, "ÿ", " ", "²", "\t", "x" * 9000),
    "If-None-Match": ("*", '"', "W/", "x" * 5000, '"\x01"', ", ,", "ÿ"),
    "If-Modified-Since": ("Thu, 01 Jan 0000 00:00:00 GMT", "x", "Fri, 31 Dec 9999 23:59:59 GMT", "9" * 400),
    "If-Match": ("*", '"a"', "x"),
    "Range": ("bytes=-1", "bytes=9-1", "bytes=" + "9" * 30 + "-", "lines=1-2", "bytes=0-0," * 500, "bytes=ÿ-"),
    "Accept-Language": ("*", "zh" * 500, "en;q=NaN", "en;q=1e400", "x-" * 300, "zh-hans-" + "a" * 600, "ÿ", ";;;,,,"),
    "Accept": ("text/html;q=x", "ÿ", "*" * 3000, "application/json; version=\x00"),
    "Host": ("[", "a b", "x" * 3000, "127.0.0.1:999999", "[::1", "ÿ", "evil.example", ""),
    "Cookie": (
        "yard_session=\x00", 'yard_session="\\000\\000\\000\\000\\000\\000\\000\\000\\000"',
        "yard_session=" + "x" * 3000, "yard_session=ÿÿÿÿÿÿÿÿÿ",
        "yard_csrf=\x00", "yard_csrf=ÿ", "django_language=\x00", "django_language=" + "z" * 2000, "messages=ÿ",
        "messages=[[[", "=;=;;;", ";" * 3000,
    ),
    "Authorization": ("Bearer \x00", "Bearer ÿ", "Bearer", "Basic ÿÿ", "Bearer " + "x" * 5000, "bearer yard_\x01",
    "Node x.y", "Bearer ²"),
    "Content-Length": ("abc", "-1", "9" * 30, "1e3", "²", "9" * 5000, " "),
    "Content-Type": (
        "application/json; charset=utf-16", "application/json; charset=nothing", "application/json; charset=hex",
        "application/x-www-form-urlencoded; charset=rot13", "application/x-www-form-urlencoded; charset=utf-7",
        "multipart/form-data",
        "multipart/form-data; boundary=ÿ", "multipart/form-data; boundary=" + "x" * 300,
        "application/x-www-form-urlencoded; charset=utf-16",
        "application/x-www-form-urlencoded; charset=nothing", "application/yaml; charset=latin-9", "ÿ/ÿ", ";",
        "a" * 3000, "application/json; " * 200,
    ),
    "X-CSRFToken": ("\x00", "ÿ" * 32, "x" * 5000),
    "X-Forwarded-Proto": ("\x00", "gopher"),
    "X-Yard-Part": ("\x00", "ÿ"),
    "Referer": ("http://[", "\x00", "//", "ÿ"),
    "Origin": ("http://[", "null", "ÿ"),
}  # fmt: skip
# Whole bodies, whatever their type claims.
BODIES: Final = (
    b"", b"\x00", b"{", b"null", b"[]", b"0", b'"x"', b"NaN", b"\xff\xfe\x00", "{}".encode("utf-16"),
    "{}".encode("utf-32"), b"\xef\xbb\xbf{}",
    b"[" * 5000, b"{" * 5000, b'{"a":' * 5000, b'{"a": 1, "a": 2}', b"9" * 5000, b'"\xed\xa0\x80"',
    b"{}" + b" " * 2**20, b"[]," * 10_000,
    b"[" + b"[]," * 100_000 + b"[]]", b"%PDF-1.7", b"a=1&a=2&%00=%00", b"&" * 3000, b"--x\r\n\r\n\r\n--x--",
    b"\x93\x01\x02", b"\xdf\xff\xff\xff\xff", b"\xc7" * 100,
)  # fmt: skip
