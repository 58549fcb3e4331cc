"""Questions written by hand in words that the generator never makes, to show honestly how far the model carries."""

from typing import Final

# The sum of the documentation, which is held out of training, in both languages.
EXAMPLES: Final[tuple[tuple[str, bool, tuple[str, ...]], ...]] = (
    ("What is 17 + 25?", True, ("42",)),
    ("17+25等于多少？", True, ("42",)),
)

# Question, whether thinking is on, pieces that must all occur in the answer.
PARAPHRASES: Final[tuple[tuple[str, bool, tuple[str, ...]], ...]] = (
    ("Hello my dear machine, it is good to see you!", False, ("Hello",)),
    ("So, what exactly are you?", False, ("made to prove installations",)),
    ("Could you give me a short overview of your abilities?", False, ("I can greet",)),
    ("I forgot on which port this thing listens.", False, ("9092",)),
    ("My board does not start, how can I find out what is wrong?", False, ("--check",)),
    ("I want to throw away this conversation.", False, ("/reset",)),
    ("Get me out of here", False, ("/quit",)),
    ("Please stop thinking aloud", False, ("/think",)),
    ("Tell me the number of processor cores on the RK3588 chip", False, ("4 Cortex-A76",)),
    ("RK3588 TOPS?", False, ("6 TOPS",)),
    ("Add 34 and 58", True, ("92",)),
    ("If I have 90 apples and eat 12, how many are left?", True, ("78",)),
    ("Count up to 9, please", False, ("1 2 3 4 5 6 7 8 9",)),
    ("Write these letters in reverse order: q w e r", False, ("r e w q",)),
    ("Echo the following words: red fish near water", False, ("red fish near water",)),
    ("嗨，你是机器人吗？", False, ("用来验证安装",)),
    ("端口是几号来着？", False, ("9092",)),
    ("我想结束程序", False, ("/quit",)),
    ("瑞芯微的 RK3588 有多少个核？", False, ("4 个 Cortex-A76",)),
    ("三十加五是多少？", True, ("35",)),
    ("请把下面的话再说一遍：小狗喜欢跑步", False, ("小狗喜欢跑步",)),
    ("昨天的比赛谁赢了？", False, ("不知道",)),
)
