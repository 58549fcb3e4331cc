"""Random text that is hard on a tokenizer: several scripts, code, emoji, odd white space, every plane of Unicode."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

SPECIAL_TOKENS = ("<|startoftext|>", "<|endoftext|>", "<|role_end|>", "<role>", "</role>", "<think>", "</think>")

_ENGLISH_WORDS = (
    "the of and to in is that for it was on are as with they be at one have this from or had by hot but some what "
    "there we can out other were all your when up use word how said an each she which do their time if will way about "
    "many then them would write like so these her long make thing see him two has look more day could go come did my "
    "sound no most number who over know water than call first people may down side been now find Running JSON naïve "
    "café Über straße façade résumé İstanbul ﬁne Ærø ŉ ſharp Σίσυφος ὀδυσσεύς Москва привет שלום مرحبا नमस्ते สวัสดี"
)
_CHINESE_WORDS = (
    "你好 我们 今天 天气 很好 机器 学习 模型 中国 北京 上海 因为 所以 但是 如果 请问 多少 等于 一二三 四五六 什么 时候 "
    "开发板 推理 引擎 谢谢 再见 学生 老师 东西 ，。 ？ ！ 「引号」 （括号） 、 ： … —— 龘靐齉 𠮷野家 "
    "日本語 カタカナ ひらがな 한국어 조선말"
)
_CONTRACTIONS = ("'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'Ve", "'ll", "'LL", "'lL", "'d", "'D", "'m", "'M")
_ODD_CONTRACTIONS = ("'ſ", "'l", "'v", "'r", "'e", "'", "''s", "'sé", "\u2019s", "'ss", "'dé", "'x", "'1", "' s", "'\n")
_CODE = (
    "def f(x):\n    return x + 1\n",
    'for (int i = 0; i < n; ++i) {\r\n\tprintf("%d\\n", i);\r\n}',
    "SELECT * FROM t WHERE a >= 10;\n\n\n",
    '{"key": [1, 2.5e-3, null], "其": "值"}',
    "#include <stdio.h>\n",
    "x = y ** 2 // 3 % 7\n\t\t# comment\n",
    "<a href='x'>y</a>  ",
    "https://example.org/a?b=c&d=%20#e",
    "```python\nprint('hi')\n```\n",
    "a\\b\\\\c | d && e || !f",
)
_EMOJI_WORDS = "😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇨🇳 🇺🇸 1️⃣ ☺️ ❤️‍🔥 🧑🏿‍🚀 👩‍❤️‍💋‍👨 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ✈︎ ™ ©️ 🫠 🪿"
_DIGITS = ("0123456789", "٠١٢٣٤٥", "０１２３４５", "ⅠⅡⅢⅳ", "¹²³½¾", "一〇", "𝟎𝟏𝟐", "१२३", "㊀㉑", "𐄇𐄈")
_SPACES = (
    " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n", "\u00a0", "\u3000", "\u2028", "\u2029", "\u0085", "\u200b", "\u2003",
    "\v", "\f", "\x1c", "\x1f", "\ufeff", "\u180e", "\u1680",
)  # fmt: skip
_COMBINING = ("\u0301", "\u0308", "\u20dd", "\u0e31", "\u0940", "\u3099", "\ufe0f", "\u200d", "\u05b0", "\U000e0100")

_ENGLISH = _ENGLISH_WORDS.split()
_CHINESE = _CHINESE_WORDS.split()
_EMOJI = _EMOJI_WORDS.split()


def english(rng: random.Random) -> str:
    """A few words, some capitalised, some with contractions."""
    words = []
    for _ in range(rng.randint(1, 6)):
        word = rng.choice(_ENGLISH)
        word = rng.choice((word, word, word.upper(), word.capitalize()))
        words.append(word + (rng.choice(_CONTRACTIONS) if rng.random() < 0.2 else ""))
    return rng.choice((" ", " ", " ", "  ", "-", "")).join(words)


def chinese(rng: random.Random) -> str:
    """A few words without spaces."""
    return "".join(rng.choice(_CHINESE) for _ in range(rng.randint(1, 6)))


def digits(rng: random.Random) -> str:
    """A run of digits of one kind, or of several."""
    kind = rng.choice(_DIGITS) if rng.random() < 0.7 else "".join(_DIGITS)
    return "".join(rng.choice(kind) for _ in range(rng.randint(1, 8)))


def spaces(rng: random.Random) -> str:
    """A run of white space, lines ends and what only looks like it."""
    return "".join(rng.choice(_SPACES) for _ in range(rng.randint(1, 6)))


def special(rng: random.Random) -> str:
    """A special token, whole or with an end cut off."""
    token = rng.choice(SPECIAL_TOKENS)
    if rng.random() < 0.3:
        begin = rng.randint(0, len(token) - 1)
        token = token[begin : rng.randint(begin + 1, len(token))]
    return token


def combining(rng: random.Random) -> str:
    """Marks on a letter, or on nothing."""
    return rng.choice(("e", "ñ", "が", "", " ", "1")) + "".join(
        rng.choice(_COMBINING) for _ in range(rng.randint(1, 4))
    )


def any_plane(rng: random.Random) -> str:
    """Code points of one of the 17 planes: assigned, unassigned, private."""
    plane = rng.randint(0, 16)
    return "".join(_code_point(rng, plane << 16, (plane << 16) + 0xFFFF) for _ in range(rng.randint(1, 5)))


def assigned(rng: random.Random) -> str:
    """Code points of the lower planes, where most characters are; neighbours, so that scripts stay together."""
    begin = rng.choice((0x80, 0x250, 0x370, 0x900, 0x1E00, 0x2000, 0x2460, 0x4E00, 0xA000, 0xFF00, 0x10000, 0x1D400))
    return "".join(_code_point(rng, begin, begin + 0x2FF) for _ in range(rng.randint(1, 5)))


def ascii_noise(rng: random.Random) -> str:
    """Any ASCII, control characters and NUL included."""
    return "".join(chr(rng.randint(0, 127)) for _ in range(rng.randint(1, 10)))


def _code_point(rng: random.Random, low: int, high: int) -> str:
    while True:
        code = rng.randint(low, high)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def _one_of(choices: Sequence[str]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(choices)


_FRAGMENTS: tuple[Callable[[random.Random], str], ...] = (
    english,
    english,
    chinese,
    chinese,
    digits,
    spaces,
    spaces,
    special,
    combining,
    any_plane,
    assigned,
    ascii_noise,
    _one_of(_CODE),
    _one_of(_EMOJI),
    _one_of(_ODD_CONTRACTIONS),
)


def random_texts(count: int, seed: int) -> Iterator[str]:
    """`count` texts of 1 to 8 fragments each; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield "".join(rng.choice(_FRAGMENTS)(rng) for _ in range(rng.randint(1, 8)))
