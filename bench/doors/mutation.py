"""Makes bad input of good: the same for the same seed, and importing nothing, so that a shim's imports stay its own."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MASK = (1 << 64) - 1
# Pieces that are odd for one reader or another: too long, too deep, no number, no UTF-8, no character, another kind.
ODD = (
    b"", b"0", b"-1", b"1", b"-0", b"1.5", b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"-Infinity", b"0x1f",
    b"2147483648", b"9007199254740993", b"9223372036854775808", b"18446744073709551616", b"9" * 400, b"9" * 5000,
    b"-" + b"9" * 5000, b"1." + b"9" * 400, b"true", b"null", b"{}", b"[]", b"[[]]", b'{"a":{}}', b'""', b'"x"',
    b'"\\u0000"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b"\xff", b"\xfe\xff", b"\0", b"\x85", b"\r",
    b"\n", b"\n\n", b" ", b"\t", b"[", b"]", b"{", b"}", b'"', b":", b",", b"\\", b"|", b"+---+", b"/", b"../",
    b"..", b"%", b"=", b"-", b"N/A", b"\xc2\xb2", b"\xd9\xa3", b"\xe6\x96\x87", b"x" * 300, b'"' + b"x" * 5000 + b'"',
)  # fmt: skip
# Seldom, for they cost more: what is nested as deep as nobody means it.
DEEP = (b"[" * 100_000, b'{"a":' * 20_000, b'{"a":[' * 10_000, b"[" * 2_000 + b"]" * 2_000, b"(" * 9_000)
_STEPS = 5
_MOST = 1 << 18


class Mutation:
    """A sequence of inputs made of ``seeds``, each of them a good one."""

    def __init__(self, seeds: "Sequence[bytes]", seed: int) -> None:
        self.seeds = seeds
        self._state = (seed * 0x9E3779B97F4A7C15 + 0x1234567) & _MASK or 1

    def below(self, limit: int) -> int:
        """A number from 0 to ``limit``, which is left out: xorshift64* of Vigna, 2016."""
        state = self._state
        state ^= state >> 12
        state ^= (state << 25) & _MASK
        state ^= state >> 27
        self._state = state
        return ((state * 2685821657736338717) & _MASK) % limit if limit > 0 else 0

    def next(self) -> bytes:
        """One more input."""
        chance = self.below(100)
        if chance < 3:
            return bytes(self.below(256) for _ in range(self.below(200)))
        if chance < 5:
            return ODD[self.below(len(ODD))]
        content = self.seeds[self.below(len(self.seeds))]
        for _ in range(1 + self.below(_STEPS)):
            content = self._step(content)
        return content[:_MOST]

    def _step(self, content: bytes) -> bytes:
        at = self.below(len(content) + 1)
        kind = self.below(20)
        if kind < 6:
            return self._another_value(content, at)
        if kind < 9:
            return content[:at] + ODD[self.below(len(ODD))] + content[at:]
        if kind < 12:
            return content[:at] + ODD[self.below(len(ODD))] + content[at + self.below(60) :]
        if kind < 14:
            return content[:at] + content[at + 1 + self.below(40) :]
        if kind < 15:
            return content[:at]
        if kind < 17:
            return content[:at] + bytes((self.below(256),)) + content[at + 1 :]
        if kind < 18:
            other = self.seeds[self.below(len(self.seeds))]
            return content[:at] + other[self.below(len(other) + 1) :]
        if kind < 19:
            end = at + self.below(200)
            return content[:end] + content[at:end] * (1 + self.below(4)) + content[end:]
        if self.below(8):
            return content
        return content[:at] + DEEP[self.below(len(DEEP))] + content[at:]

    def _another_value(self, content: bytes, at: int) -> bytes:
        """The value behind the next colon or equals sign is another one."""
        begin = content.find(b":", at) + 1 or content.find(b"=", at) + 1
        if not begin:
            return content + ODD[self.below(len(ODD))]
        end = begin
        while end < len(content) and content[end] not in b",}\n":
            end += 1
        return content[:begin] + ODD[self.below(len(ODD))] + content[end:]
