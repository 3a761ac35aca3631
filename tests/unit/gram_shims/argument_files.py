"""Renders argument files as the job manager of GRAM 1.5 did (globus_l_gram_param_prepare)."""

from collections.abc import Iterable, Mapping

_ESCAPES = {'"': '\\"', "\\": "\\\\\\\\", "'": "'\"'\"'", "$": "'\"\\\\$\"'"}


def render_word(word: str) -> str:
    """One value, for single quotes."""
    return "".join(_ESCAPES.get(letter, letter) for letter in word)


def render_words(words: Iterable[str]) -> str:
    """A list, for single quotes."""
    return " ".join(f'"{render_word(word)}"' for word in words)


def render_argument_file(
    words: Mapping[str, str] | None = None,
    lists: Mapping[str, Iterable[str]] | None = None,
    raw: Mapping[str, str] | None = None,
) -> str:
    """An argument file of single values, lists, and values that GRAM wrote as they were."""
    lines = [f"grami_{name}='{render_word(word)}'\n" for name, word in (words or {}).items()]
    lines += [f"grami_{name}='{render_words(words)}'\n" for name, words in (lists or {}).items()]
    return "".join([*lines, *(f"{name}='{word}'\n" for name, word in (raw or {}).items())])
