"""Texts in which tokenizers differ: all planes of Unicode, marks, joiners, quotes, URLs, emoticons, exceptions at punctuation."""

from random import Random

BRACKETS = ["(", ")", '"', "'", "``", "''", "«", "»", "“", "”", "[", "]", "{", "}", "<", ">"]
PUNCTUATION = [*BRACKETS, *"…—-/:;,.!?¿¡*&%$€°#@=+_|\\", "...", "--"]
SPACES = [
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u2003",
    "\x1c",
    "\x85",
    "\u2028",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\x00",
]
JOINED = ["\u200d", "\u0301", "👍🏽", "👨‍👩‍👧", "🇩🇪", "❤️", "e\u0301", "กำ", "각"]
URLS = [
    "http://a.b/c?d=e",
    "www.example.com",
    "user@example.org",
    "https://ex.com/(foo)",
    "ftp://x.y",
    "localhost:80",
    "//foo.bar",
]
NUMBERS = ["10km", "5%", "3.5", "1,000", "10-20", "$5", "5kg.", "km²", "10°C.", "2er"]
CUT = [
    "C++",
    "A.M.",
    "p.m.",
    "U.S.A.",
    "don't",
    "I'm",
    "'Twas",
    "l'homme",
    "aujourd'hui",
    "z.B.",
    "e.g.",
    "Sr.",
    "qu'il",
    "entre-temps",
]
FACES = [":)", ":-(", "xD", ":'(", "(-_-)", "¯\\_(ツ)_/¯", "<3", "O.o", "8)", ":/"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäöüßéñçÅΑβдЖ字かナ한ไทยאبतமςΣİıſK"]


def hostile_text(rng: Random, exceptions: list[str]) -> str:
    """Draw a text of up to 30 pieces, some of which are exceptions of a tokenizer."""
    most = rng.choice([3, 6, 30])
    return "".join(_piece(rng, exceptions) for _ in range(rng.randrange(1, most)))


def _piece(rng: Random, exceptions: list[str]) -> str:
    kind = rng.randrange(10)
    if kind == 0:
        point = rng.choice([rng.randrange(0x300), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])
        return chr(point)
    if kind == 1 and exceptions:
        return rng.choice(exceptions)
    if kind == 2 and exceptions:
        return rng.choice(PUNCTUATION) + rng.choice(exceptions) + rng.choice(PUNCTUATION)
    if kind == 3 and exceptions:
        return rng.choice(exceptions).swapcase()
    if kind == 4:
        return "".join(rng.choice("aZb9.-'(),") for _ in range(rng.randrange(1, 12)))
    return rng.choice(rng.choice([PUNCTUATION, SPACES, JOINED, URLS, NUMBERS, CUT, FACES, LETTERS, LETTERS, [" "]]))
