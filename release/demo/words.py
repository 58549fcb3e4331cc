"""Word lists of the generated text: copying material, lists of things, names, polite wrappings."""

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ENGLISH_WORDS: Final = _words(
    "cat dog red blue big small house tree river runs sleeps eats sees near under over moon sun star green apple book "
    "table chair window door happy slow fast road bird fish cold warm night day old new board model chip stone light "
    "paper music water"
)
CHINESE_WORDS: Final = _words(
    "今天 天气 很好 我们 一起 学习 大家 喜欢 喝茶 看书 小猫 小狗 跑步 唱歌 北京 上海 春天 花园 美丽 朋友 快乐 老师 "
    "学生 电脑 芯片 模型 早上 晚上 月亮 太阳 河水 山上 红色 蓝色"
)
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

# English category, Chinese category, English items, Chinese items; eight of each, always named in this order.
CATEGORIES: Final[tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        "fruits",
        "水果",
        _words("apple banana orange grape pear peach mango lemon"),
        _words("苹果 香蕉 橙子 葡萄 梨 桃子 芒果 柠檬"),
    ),
    (
        "colors",
        "颜色",
        _words("red blue green yellow black white orange purple"),
        _words("红色 蓝色 绿色 黄色 黑色 白色 橙色 紫色"),
    ),
    (
        "animals",
        "动物",
        _words("cat dog horse cow sheep tiger lion rabbit"),
        _words("猫 狗 马 牛 羊 老虎 狮子 兔子"),
    ),
    (
        "cities",
        "城市",
        _words("Beijing Shanghai Paris London Tokyo Berlin Madrid Rome"),
        _words("北京 上海 广州 深圳 杭州 成都 武汉 西安"),
    ),
    (
        "planets",
        "行星",
        _words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
        _words("水星 金星 地球 火星 木星 土星 天王星 海王星"),
    ),
)

ENGLISH_NAMES: Final = _words(
    "Tom Anna Ben Lucy Jack Mary Paul Emma John Lily David Sara Peter Nina Mark Rosa Alex Eva Leo Ida"
)
CHINESE_NAMES: Final = _words("小明 小红 小王 小李 小张 小刘 小陈 小林 小芳 小丽 小强 小军")

ENGLISH_OPENINGS: Final = (
    "",
    "",
    "",
    "Please tell me: ",
    "Hey, ",
    "Hi, ",
    "Hello, ",
    "Question: ",
    "I want to know: ",
    "Quick question: ",
    "One thing: ",
)
ENGLISH_ENDINGS: Final = ("?", "?", "?", "", ".", "? Thanks", "? Thank you.", " please?", "??", "!")
CHINESE_OPENINGS: Final = (
    "",
    "",
    "",
    "请问",
    "请问，",
    "请告诉我，",
    "你好，",
    "问题：",
    "我想知道",
    "麻烦问一下，",
    "问一下，",
)
CHINESE_ENDINGS: Final = ("？", "？", "？", "", "。", "？谢谢", "？谢谢。", "呢？", "?", "！")

SYSTEM_TEXTS: Final = ("", "", "", "", "You are a helpful assistant.", "你是一个有用的助手。")
