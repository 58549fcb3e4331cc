"""The kinds of exchange that the built-in model learns, one function each.

Every maker returns one `Turn` with a single right answer, so that a held-out prompt can be judged by equality. What is
held out differs by kind: for sums, the pair of numbers; for copying and reversing, the content; for counting, the two
bounds; elsewhere the wording as a whole (opening, question, ending), because the facts themselves must be seen.
"""

from collections.abc import Callable
from typing import Final

from release.demo import facts, sums, words
from release.demo.drawing import Draw, Turn, held_wording, wrap


def greeting(draw: Draw) -> Turn:
    def make() -> str:
        if draw.chinese:
            first = draw.rng.choice(("", "", "嗨，", "哈喽，", "喂，", "嘿，"))
            core = draw.rng.choice(
                ("你好", "您好", "早上好", "晚上好", "下午好", "早安", "晚安", "大家好", "嗨", "哈喽")
            )
            return (
                first
                + core
                + draw.rng.choice(("", "！", "。", "呀", "啊！", "，在吗？", "~", "！很高兴见到你", "吗？", "！！"))
            )
        first = draw.rng.choice(("", "", "Oh, ", "Well, ", "Hey, ", "Ah, "))
        core = draw.rng.choice(
            ("hello", "hi", "hey", "good morning", "good evening", "good afternoon", "Hello", "Hi", "Hey", "greetings")
        )
        tail = ("", "!", ".", " there", " there!", ", how are you?", " friend", "!!", ", nice to meet you", " again")
        return first + core + draw.rng.choice(tail)

    return Turn(
        user=held_wording(draw, make),
        reasoning=draw.say("The user greets me.", "用户在打招呼。"),
        answer=draw.say("Hello! How can I help you?", "你好！有什么可以帮你？"),
    )


def _ask(draw: Draw, known: tuple[facts.Fact, ...], reasoning: str) -> Turn:
    chosen = draw.rng.choice(known)

    def make() -> str:
        return wrap(draw, draw.pick(chosen.asked, chosen.asked_zh))

    return Turn(user=held_wording(draw, make), reasoning=reasoning, answer=draw.say(chosen.answer, chosen.answer_zh))


def identity(draw: Draw) -> Turn:
    return _ask(draw, facts.IDENTITY, draw.say("The user asks who I am.", "用户在问我是谁。"))


def fact(draw: Draw) -> Turn:
    return _ask(draw, facts.FACTS, draw.say("I know this fact.", "这个我知道。"))


def unknown(draw: Draw) -> Turn:
    def make() -> str:
        template = draw.pick(facts.UNKNOWN_QUESTIONS, facts.UNKNOWN_QUESTIONS_ZH)
        first, second = draw.rng.sample(words.CHINESE_WORDS if draw.chinese else words.ENGLISH_WORDS, 2)
        return wrap(draw, template.format(w=first, v=second))

    return Turn(
        user=held_wording(draw, make),
        reasoning=draw.say("I do not know this.", "这个我不知道。"),
        answer=draw.say(facts.UNKNOWN_ANSWER, facts.UNKNOWN_ANSWER_ZH),
    )


def listing(draw: Draw) -> Turn:
    english, chinese, items, items_zh = draw.rng.choice(words.CATEGORIES)
    count = draw.rng.randint(2, 8)

    def make() -> str:
        if draw.chinese:
            forms = (
                f"列出{count}种{chinese}",
                f"说出{count}个{chinese}",
                f"给我{count}个{chinese}的例子",
                f"写{count}个{chinese}",
            )
            return wrap(draw, draw.rng.choice(forms))
        forms = (
            f"list {count} {english}",
            f"name {count} {english}",
            f"give me {count} {english}",
            f"write {count} {english}",
        )
        return wrap(draw, draw.rng.choice(forms))

    chosen = (items_zh if draw.chinese else items)[:count]
    return Turn(
        user=held_wording(draw, make),
        reasoning=draw.say(f"I need {count} items.", f"要 {count} 个。"),
        answer="\n".join(f"{row}. {item}" for row, item in enumerate(chosen, 1)),
    )


def copying(draw: Draw) -> Turn:
    """Up to six different words; different, because a repeated word has two continuations."""
    while True:
        count = draw.rng.randint(1, 6)
        if draw.chinese:
            text = "".join(draw.rng.sample(words.CHINESE_WORDS, count))
        else:
            text = " ".join(draw.rng.sample(words.ENGLISH_WORDS, count))
        if draw.allows("copy " + text):
            break
    english = (
        f"Repeat: {text}",
        f"Please repeat this: {text}",
        f"Say: {text}",
        f"Copy: {text}",
        f"Repeat after me: {text}",
    )
    chinese = (f"重复：{text}", f"请重复这句话：{text}", f"跟我说：{text}", f"复述：{text}", f"请照着说：{text}")
    return Turn(user=draw.pick(english, chinese), reasoning=draw.say("I just copy it.", "照抄即可。"), answer=text)


def reversal(draw: Draw) -> Turn:
    """Two to six different letters, spaced."""
    while True:
        letters = draw.rng.sample(words.LETTERS, draw.rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 6)))
        text = " ".join(letters)
        if draw.allows("reverse " + text):
            break
    english = (
        f"Reverse: {text}",
        f"Reverse the letters: {text}",
        f"Write backwards: {text}",
        f"Please reverse: {text}",
    )
    chinese = (f"倒序： {text}", f"把字母倒过来： {text}", f"倒着写： {text}", f"请倒序： {text}")
    return Turn(
        user=draw.pick(english, chinese),
        reasoning=draw.say("From the last to the first.", "从后往前写。"),
        answer=" ".join(reversed(letters)),
    )


def _count_wording(draw: Draw, first: int, last: int) -> str:
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    english = (
        f"Count from {first} to {last}",
        f"Count from {first} to {last}.",
        f"Please count from {first} to {last}.",
        f"Can you count from {first} to {last}?",
        f"List the numbers from {first} to {last}.",
    )
    chinese = (
        f"从{first}数到{last}",
        f"从{first}数到{last}。",
        f"请从 {first} 数到 {last}",
        f"请从{first}数到{last}。",
        f"写出{first}到{last}的数字",
    )
    if first == 1 and draw.rng.random() < 0.5:
        english = (f"Count to {last}", f"Count to {last}.", f"Please count to {last}.", f"Can you count to {last}?")
        chinese = (f"数到{last}", f"请数到{last}。", f"请数到 {last}", f"数数到{last}")
    return draw.pick(english, chinese)


def counting(draw: Draw) -> Turn:
    """From any start to a bound of at most twenty.

    The pair of bounds is held out. From the second lesson on, pairs that start at one are trained too, in some
    wordings: everybody tries "count to nine", so no bound may be left to luck.
    """
    while True:
        first = 1 if draw.rng.random() < 0.4 else draw.rng.randint(1, 18)
        last = draw.rng.randint(first + 1, 20)
        bounds = f"count {first}-{last}"
        taught = first == 1 and draw.lesson == 2
        if not taught and not draw.allows(bounds):
            continue
        user = _count_wording(draw, first, last)
        if not taught or draw.allows(bounds, user):
            break
    return Turn(
        user=user,
        reasoning=draw.say(f"From {first} to {last}.", f"从 {first} 到 {last}。"),
        answer=" ".join(str(number) for number in range(first, last + 1)),
    )


def table(draw: Draw) -> Turn:
    """A table of squares or doubles, JSON objects, a JSON list, or numbered lines: two to eight rows."""
    kind = draw.rng.choice(("squares", "doubles", "objects", "items", "lines"))
    rows = draw.rng.randint(2, 8)
    numbers = range(1, rows + 1)
    english: tuple[str, ...]
    chinese: tuple[str, ...]
    english_category, chinese_category, items, items_zh = draw.rng.choice(words.CATEGORIES)
    while True:
        word = draw.pick(words.ENGLISH_WORDS, words.CHINESE_WORDS)
        if kind in ("squares", "doubles", "items") or draw.allows(f"table {kind} {rows} {word}"):
            break
    if kind == "squares":
        english = (
            f"make a table of squares with {rows} rows",
            f"write a table of squares to {rows}",
            f"show {rows} rows of squares",
        )
        chinese = (f"写一个{rows}行的平方表", f"做一个{rows}行的平方表", f"列出{rows}行平方表")
        answer = "| n | n*n |\n|---|---|\n" + "\n".join(f"| {n} | {n * n} |" for n in numbers)
    elif kind == "doubles":
        english = (
            f"make a table of doubles with {rows} rows",
            f"write a table of doubles to {rows}",
            f"show {rows} rows of doubles",
        )
        chinese = (f"写一个{rows}行的两倍表", f"做一个{rows}行的两倍表", f"列出{rows}行两倍表")
        answer = "| n | 2*n |\n|---|---|\n" + "\n".join(f"| {n} | {2 * n} |" for n in numbers)
    elif kind == "objects":
        english = (f"give JSON with {rows} objects named {word}", f"write JSON with {rows} objects named {word}")
        chinese = (f"输出{rows}个对象的 JSON，名字是{word}", f"写{rows}个对象的 JSON，名字是{word}")
        answer = "[\n" + ",\n".join(f'{{"id": {n}, "name": "{word}"}}' for n in numbers) + "\n]"
    elif kind == "items":
        english = (f"list {rows} {english_category} as JSON", f"give me {rows} {english_category} as JSON")
        chinese = (f"用 JSON 列出{rows}个{chinese_category}", f"用 JSON 写{rows}个{chinese_category}")
        chosen = (items_zh if draw.chinese else items)[:rows]
        answer = "{\n" + ",\n".join(f'"{n}": "{item}"' for n, item in enumerate(chosen, 1)) + "\n}"
    else:
        english = (f"write {word} {rows} times in numbered lines", f"repeat {word} in {rows} numbered lines")
        chinese = (f"把{word}写{rows}遍，每行编号", f"分{rows}行写{word}，每行编号")
        answer = "\n".join(f"{n}. {word}" for n in numbers)

    def make() -> str:
        text = draw.pick(english, chinese)
        if draw.chinese:
            return (
                draw.rng.choice(("", "", "请", "请你", "帮我")) + text + draw.rng.choice(("", "", "。", "！", "，谢谢"))
            )
        opening = draw.rng.choice(("", "", "Please ", "Can you ", "Now "))
        return (opening + text if opening else text[0].upper() + text[1:]) + draw.rng.choice(
            ("", "", ".", "!", ", please")
        )

    wording = make() if kind in ("objects", "lines") else held_wording(draw, make)
    return Turn(user=wording, reasoning=draw.say(f"{rows} rows.", f"共 {rows} 行。"), answer=answer)


def naming(draw: Draw) -> Turn:
    """The user gives a name; `recalling` asks for it later."""
    name = draw.pick(words.ENGLISH_NAMES, words.CHINESE_NAMES)
    english = (f"My name is {name}.", f"I am {name}.", f"Call me {name}", f"Hi, my name is {name}.")
    chinese = (f"我叫{name}。", f"我是{name}。", f"你好，我叫{name}", f"我的名字是{name}。")
    return Turn(
        user=draw.pick(english, chinese),
        reasoning=draw.say(f"The name is {name}.", f"名字是{name}。"),
        answer=draw.say(f"Nice to meet you, {name}.", f"很高兴认识你，{name}。"),
    )


def recalling(draw: Draw, name: str) -> Turn:
    """Asks for the name given by `naming` in an earlier turn."""
    english = ("What is my name?", "Do you know my name?", "Who am I?", "What am I called?")
    chinese = ("我叫什么？", "我叫什么名字？", "你知道我的名字吗？", "我是谁？")
    return Turn(
        user=draw.pick(english, chinese),
        reasoning=draw.say(f"The name is {name}.", f"名字是{name}。"),
        answer=draw.say(f"Your name is {name}.", f"你叫{name}。"),
    )


TASKS: Final[dict[str, Callable[[Draw], Turn]]] = {
    "greeting": greeting,
    "identity": identity,
    "fact": fact,
    "unknown": unknown,
    "list": listing,
    "copy": copying,
    "reverse": reversal,
    "count": counting,
    "table": table,
    "add": sums.addition,
    "subtract": sums.subtraction,
    "digits": sums.digits,
    "name": naming,
}
