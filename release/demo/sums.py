"""Sums and differences: one digit at once, two digits in written steps."""

from release.demo.drawing import Draw, Turn


def steps(left: int, right: int, operator: str) -> str:
    """Written sums: units, then tens with the carry (or borrow), then the result. Needs 0 <= result."""
    tens, units = divmod(left, 10)
    other_tens, other_units = divmod(right, 10)
    if operator == "+":
        low = units + other_units
        carry = low // 10
        high = tens + other_tens + carry
        return f"{units}+{other_units}={low}; {tens}+{other_tens}+{carry}={high}; {left + right}"
    borrow = int(units < other_units)
    low = units + 10 * borrow - other_units
    high = tens - other_tens - borrow
    return f"{units + 10 * borrow}-{other_units}={low}; {tens}-{other_tens}-{borrow}={high}; {left - right}"


def _sum_question(draw: Draw, left: int, right: int, operator: str) -> str:
    english_name = "plus" if operator == "+" else "minus"
    chinese_name = "加" if operator == "+" else "减"
    tight = f"{left}{operator}{right}"
    spaced = f"{left} {operator} {right}"
    english = (
        f"{tight}=?",
        f"{spaced} = ?",
        f"{tight}",
        f"{spaced}",
        f"What is {tight}?",
        f"What is {spaced}?",
        f"What is {spaced}?",
        f"Compute {spaced}.",
        f"How much is {spaced}?",
        f"Calculate {tight}",
        f"What is {left} {english_name} {right}?",
        f"{left} {english_name} {right}",
    )
    chinese = (
        f"{tight}=?",
        f"{spaced} = ?",
        f"{tight}等于多少？",
        f"{tight}等于多少？",
        f"{spaced} 等于多少？",
        f"{tight}等于几？",
        f"计算 {tight}",
        f"请计算{tight}",
        f"{tight}是多少？",
        f"{left}{chinese_name}{right}等于多少？",
        f"{left}{chinese_name}{right}",
    )
    return draw.pick(english, chinese)


def _two_digits(draw: Draw, operator: str) -> Turn:
    both = 0.85 if draw.lesson == 1 else 0.7  # the share of sums in which both numbers have two digits
    while True:
        left = draw.rng.randint(10, 99)
        right = draw.rng.randint(10, 99) if draw.rng.random() < both else draw.rng.randint(0, 9)
        if operator == "+" and draw.rng.random() < 0.5:
            left, right = right, left
        if operator == "-" and left < right:
            left, right = right, left
        if draw.allows(f"sum {left}{operator}{right}"):
            break
    result = left + right if operator == "+" else left - right
    worked = f"{left}{operator}{right}: {steps(left, right, operator)}"
    final = f"{left}{operator}{right}={result}"
    # Without thinking the steps stand in the answer: a model of this size cannot add two digits in its head.
    answer = final if draw.thinking else f"{worked}\n{final}"
    return Turn(user=_sum_question(draw, left, right, operator), reasoning=worked, answer=answer)


def addition(draw: Draw) -> Turn:
    return _two_digits(draw, "+")


def subtraction(draw: Draw) -> Turn:
    return _two_digits(draw, "-")


def digits(draw: Draw) -> Turn:
    """One-digit sums and differences, answered at once. The hundred pairs are facts; the wording is held out."""
    while True:
        operator = "+" if draw.rng.random() < 0.7 else "-"
        left, right = draw.rng.randint(0, 9), draw.rng.randint(0, 9)
        if operator == "-" and left < right:
            left, right = right, left
        question = _sum_question(draw, left, right, operator)
        if draw.allows("digits " + question):
            break
    result = left + right if operator == "+" else left - right
    final = f"{left}{operator}{right}={result}"
    return Turn(user=question, reasoning=draw.say("This is easy.", "这很简单。"), answer=final)
