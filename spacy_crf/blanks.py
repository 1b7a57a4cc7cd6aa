"""What separates words and columns in users' files: tabs and blanks alone. Other white space is part of words, such as U+00A0 in
``10 000`` or U+3000 in Chinese and Japanese texts, and U+2028 and U+0085 end no lines."""

BLANKS = " \t\r\n"


def is_blank(line: str) -> bool:
    """Whether a line is empty, or has only blanks and tabs."""
    return not line.strip(BLANKS)


def split_words(text: str) -> list[str]:
    """Split a text at blanks, tabs and ends of lines."""
    for blank in BLANKS:
        text = text.replace(blank, " ")
    return [word for word in text.split(" ") if word]


def split_columns(line: str) -> list[str]:
    """Split a line at its tabs; without a tab, at its blanks."""
    return line.split("\t") if "\t" in line else split_words(line)
