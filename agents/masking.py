"""Masks secrets in a command's output before it is stored: values that the job marks, and tokens by their form.

The masked output is stored, counted and shipped, so an offset always means the same byte. A secret may arrive in
pieces: a possible beginning of one is kept back until it is decided. The shim imports this: no regular expressions.
"""

MASK = b"***"
SHORTEST = 4
"""Shorter values are words of any output: masking them would hide more than it protects."""
LONGEST_KEY = 16384

_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_WIDE = _LETTERS + b"_-"
_DOTTED = _WIDE + b"."
_CAPITALS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

# The prefix, alphabet, and least and most length of tokens: the formats that their issuers publish for secret scanners.
_SHAPES = {
    b"ghp_": (_LETTERS, 36, 255),
    b"gho_": (_LETTERS, 36, 255),
    b"ghs_": (_LETTERS, 36, 255),
    b"github_pat_": (_WIDE, 22, 255),
    b"glpat-": (_WIDE, 20, 255),
    b"hf_": (_LETTERS, 30, 255),
    b"sk-": (_WIDE, 20, 255),
    b"AKIA": (_CAPITALS, 16, 16),
    b"ASIA": (_CAPITALS, 16, 16),
    b"AIza": (_WIDE, 35, 35),
    b"xoxb-": (_WIDE, 10, 255),
    b"xoxp-": (_WIDE, 10, 255),
    b"pypi-": (_WIDE, 50, 255),
    b"yard_": (_WIDE, 43, 43),
    b"eyJ": (_DOTTED, 40, 2048),
}
_KEY_BEGINS, _KEY_ENDS = b"-----BEGIN ", b"PRIVATE KEY-----"

# Parts of variable names that usually hold secrets, whether the job marks them or not.
_TELLING = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY")
_TELLING_KEYS = ("API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "SECRET_KEY")


def tells_secret(name: str) -> bool:
    """Whether the name of a variable implies a secret: ``HF_TOKEN``, ``WANDB_API_KEY``."""
    upper = name.upper()
    return upper.rpartition("_")[2] in _TELLING or any(
        upper == key or upper.endswith("_" + key) for key in _TELLING_KEYS
    )


def secrets_of(env: dict, marked: "list[str] | tuple[str, ...]" = ()) -> "list[str]":  # type: ignore[type-arg]
    """Return the values to mask: those of the marked variables, and of those whose names imply a secret."""
    return [value for name, value in sorted(env.items()) if value and (name in marked or tells_secret(name))]


def _spellings(secret: str) -> "set[bytes]":
    """Return the forms of a value to search for: as it is, and line by line."""
    words = {secret.strip("\n"), *(line for line in secret.splitlines() if len(line) >= 2 * SHORTEST)}
    return {word.encode(errors="surrogateescape") for word in words if len(word) >= SHORTEST}


class Mask:
    """The mask of one stream. ``feed`` returns what is decided, ``end`` the rest."""

    def __init__(self, secrets: "list[str] | tuple[str, ...]" = ()) -> None:
        words: set[bytes] = set().union(*map(_spellings, secrets))
        # Longest first: of two that begin at one place, the longer is masked whole.
        self._words = sorted(words, key=len, reverse=True)
        self._beginnings = (*self._words, *_SHAPES, _KEY_BEGINS)
        self._waiting = self._before = b""

    def feed(self, content: bytes) -> bytes:
        return self._go(self._waiting + content if self._waiting else content, last=False)

    def end(self) -> bytes:
        return self._go(self._waiting, last=True)

    @property
    def held_back(self) -> int:
        """How many bytes were fed and are not decided yet."""
        return len(self._waiting)

    def forget(self) -> int:
        """Drop what is kept back, because what follows it is dropped too; return how many bytes."""
        count, self._waiting = len(self._waiting), b""
        return count

    def _go(self, whole: bytes, last: bool) -> bytes:
        self._waiting = b""
        told: list[bytes] = []
        done = at = 0
        places = {beginning: whole.find(beginning) for beginning in self._beginnings}
        places = {beginning: place for beginning, place in places.items() if place >= 0}
        while places:
            beginning = min(places, key=places.__getitem__)
            place = places[beginning]
            if place < at:
                places[beginning] = whole.find(beginning, at)
                if places[beginning] < 0:
                    del places[beginning]
                continue
            end = self._end(whole, beginning, place, last)
            if end < 0:
                self._waiting = whole[place:]
                whole = whole[:place]
                break
            if end > place:
                told += (whole[done:place], MASK)
                done = at = end
            else:
                at = place + 1
        if not self._waiting and not last:
            cut = self._open_at(whole, done)
            self._waiting, whole = whole[cut:], whole[:cut]
        self._before = whole[-1:] or self._before
        return b"".join((*told, whole[done:])) if told else whole

    def _end(self, whole: bytes, beginning: bytes, place: int, last: bool) -> int:
        """Return the end of the secret that begins here; the place itself if there is none, -1 if undecided."""
        if not last and any(len(word) > len(whole) - place and word.startswith(whole[place:]) for word in self._words):
            return -1
        for word in self._words:
            if whole.startswith(word, place):
                return place + len(word)
        if beginning == _KEY_BEGINS:
            return _key_end(whole, place, last)
        shape = _SHAPES.get(beginning)
        before = whole[place - 1 : place] if place else self._before
        if shape is None or (before and before in _LETTERS):
            return place
        charset, shortest, longest = shape
        start = place + len(beginning)
        rest = whole[start : start + longest + 1]
        run = len(rest) - len(rest.lstrip(charset))
        if run == len(rest) <= longest and not last:
            return -1
        is_token = shortest <= run <= longest and (charset is not _DOTTED or rest[:run].strip(b".").count(b".") == 2)
        return start + run if is_token else place

    def _open_at(self, whole: bytes, done: int) -> int:
        """Return where the last bytes begin that could be the start of a secret, after the masked part."""
        cut = len(whole)
        for beginning in self._beginnings:
            at = whole.find(beginning[:1], max(done, len(whole) - len(beginning) + 1))
            while 0 <= at < cut:
                if beginning.startswith(whole[at:]):
                    cut = at
                    break
                at = whole.find(beginning[:1], at + 1)
        return cut


def _key_end(whole: bytes, place: int, last: bool) -> int:
    """Return the end of a private key in PEM (RFC 7468), from its first line to its last."""
    begins = whole.find(_KEY_ENDS, place, place + 64)
    if begins < 0:
        return -1 if len(whole) - place < 64 and b"\n" not in whole[place:] and not last else place
    ends = whole.find(b"-----END ", begins, begins + LONGEST_KEY)
    ends = whole.find(_KEY_ENDS, ends, ends + 64) if ends >= 0 else -1
    if ends >= 0:
        return ends + len(_KEY_ENDS)
    if last:
        return len(whole)
    return -1 if len(whole) - begins < LONGEST_KEY else place
