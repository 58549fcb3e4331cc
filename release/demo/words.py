"""Word lists of the generated text: copying material, lists of things, names, polite wrappings."""

from typing import Final

ENGLISH_WORDS: Final = tuple(
    "cat dog red blue big small house tree river runs sleeps eats sees near under over moon sun star green apple book "
    "table chair window door happy slow fast road bird fish cold warm night day old new board model chip stone light "
    "paper music water".split()
)
CHINESE_WORDS: Final = tuple(
    "今天 天气 很好 我们 一起 学习 大家 喜欢 喝茶 看书 小猫 小狗 跑步 唱歌 北京 上海 春天 花园 美丽 朋友 快乐 老师 "
    "学生 电脑 芯片 模型 早上 晚上 月亮 太阳 河水 山上 红色 蓝色".split()
)
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

# English category, Chinese category, English items, Chinese items; eight of each, always named in this order.
CATEGORIES: Final[tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        "fruits",
        "水果",
        tuple("apple banana orange grape pear peach mango lemon".split()),
        tuple("苹果 香蕉 橙子 葡萄 梨 桃子 芒果 柠檬".split()),
    ),
    (
        "colors",
        "颜色",
        tuple("red blue green yellow black white orange purple".split()),
        tuple("红色 蓝色 绿色 黄色 黑色 白色 橙色 紫色".split()),
    ),
    (
        "animals",
        "动物",
        tuple("cat dog horse cow sheep tiger lion rabbit".split()),
        tuple("猫 狗 马 牛 羊 老虎 狮子 兔子".split()),
    ),
    (
        "cities",
        "城市",
        tuple("Beijing Shanghai Paris London Tokyo Berlin Madrid Rome".split()),
        tuple("北京 上海 广州 深圳 杭州 成都 武汉 西安".split()),
    ),
    (
        "planets",
        "行星",
        tuple("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()),
        tuple("水星 金星 地球 火星 木星 土星 天王星 海王星".split()),
    ),
)

ENGLISH_NAMES: Final = tuple(
    "Tom Anna Ben Lucy Jack Mary Paul Emma John Lily David Sara Peter Nina Mark Rosa Alex Eva Leo Ida".split()
)
CHINESE_NAMES: Final = tuple("小明 小红 小王 小李 小张 小刘 小陈 小林 小芳 小丽 小强 小军".split())

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
