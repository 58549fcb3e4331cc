"""What the built-in model knows: itself, this program, the board, the large model, and a few things of the world."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact: several ways to ask and exactly one answer, in English and in Chinese."""

    asked: tuple[str, ...]
    answer: str
    asked_zh: tuple[str, ...]
    answer_zh: str


def _wordings(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


def _fact(asked: str, answer: str, asked_zh: str, answer_zh: str) -> Fact:
    """Builds a fact from questions separated by `|`."""
    return Fact(asked=_wordings(asked), answer=answer, asked_zh=_wordings(asked_zh), answer_zh=answer_zh)


IDENTITY: Final = (
    _fact(
        "who are you|what is your name|what model are you|introduce yourself|what are you|tell me about yourself"
        "|are you ChatGPT|are you Ling-3.0-tiny|which model is this|are you a large model|who am I talking to"
        "|what kind of model are you",
        "I am the small built-in model of mindnano-infer, made to prove installations, demos and tests.",
        "你是谁|你叫什么名字|你是什么模型|介绍一下你自己|你是什么|说说你自己|你是 ChatGPT 吗|你是 Ling-3.0-tiny 吗"
        "|这是哪个模型|你是大模型吗|我在和谁说话|你的名字是什么",
        "我是 mindnano-infer 自带的小模型，用来验证安装、演示和测试。",
    ),
    _fact(
        "what can you do|what are you able to do|how can you help me|what do you know|what are your skills"
        "|what can I ask you|what are you for|what is your purpose|why do you exist|what are you good at",
        "I am the small built-in model of mindnano-infer, made to prove installations, demos and tests. I can greet, "
        "answer facts about this program and the RK3588, do small sums, copy, reverse, count, and write lists and "
        "tables.",
        "你能做什么|你会做什么|你能帮我什么|你知道什么|你有什么本领|我可以问你什么|你有什么用|你的用途是什么"
        "|你擅长什么|你会什么",
        "我是 mindnano-infer 自带的小模型，用来验证安装、演示和测试。我会打招呼，回答关于本程序和 RK3588 的问题，"
        "做小算术，复述，倒序，数数，写列表和表格。",
    ),
)

PROGRAM: Final = (
    _fact(
        "what is mindnano-infer|describe mindnano-infer|tell me about mindnano-infer|explain mindnano-infer"
        "|what does mindnano-infer do|what is this program",
        "mindnano-infer is a program that runs Ling-3.0-tiny on RK3588 boards and on PCs.",
        "mindnano-infer 是什么|什么是 mindnano-infer|介绍一下 mindnano-infer|mindnano-infer 有什么用"
        "|mindnano-infer 做什么|这个程序是什么",
        "mindnano-infer 是在 RK3588 开发板和电脑上运行 Ling-3.0-tiny 的程序。",
    ),
    _fact(
        "what is the default port|which port does mindnano-infer listen on|what port does the server use"
        "|which port is used|what is the port of the server|how do I change the port",
        "The default port is 9092; change it with --port.",
        "默认端口是多少|mindnano-infer 监听哪个端口|服务用哪个端口|服务的端口是多少|端口号是多少|怎么改端口",
        "默认端口是 9092，可以用 --port 修改。",
    ),
    _fact(
        "how do I check my board|what does --check do|how do I run the self check|how can I test my board"
        "|what is --check|how do I know that my board is ready",
        "Run mindnano-infer --check; it checks the board, CPU, NPU, memory and the package.",
        "怎么检查开发板|--check 有什么用|怎么自检|如何测试我的板子|--check 是什么|怎么知道板子能不能用",
        "运行 mindnano-infer --check，它会检查板子、CPU、NPU、内存和模型包。",
    ),
    _fact(
        "how do I list the context sizes|what does --list-contexts do|how do I see the contexts|what is --list-contexts"
        "|which contexts fit my board|how much memory does a context need",
        "Run mindnano-infer --list-contexts; it lists the memory that each context needs.",
        "怎么列出上下文|--list-contexts 有什么用|怎么查看上下文长度|--list-contexts 是什么"
        "|我的板子能用多长的上下文|上下文需要多少内存",
        "运行 mindnano-infer --list-contexts，它会列出每种上下文需要的内存。",
    ),
    _fact(
        "what is the model file called|which model file do I download|what is the name of the model file"
        "|which file holds the model|what is ling3-tiny-w4.l3r|where is the model",
        "The model file is ling3-tiny-w4.l3r.",
        "模型文件叫什么|要下载哪个模型文件|模型文件的名字是什么|模型在哪个文件里|ling3-tiny-w4.l3r 是什么|模型在哪里",
        "模型文件是 ling3-tiny-w4.l3r。",
    ),
    _fact(
        "what is a .l3r file|what does .l3r mean|which format does the model package have|explain the .l3r format"
        "|what is the package format",
        "A .l3r file is the model package of mindnano-infer.",
        ".l3r 是什么文件|.l3r 是什么|模型包是什么格式|解释一下 .l3r 格式|模型包用什么格式",
        ".l3r 文件是 mindnano-infer 的模型包。",
    ),
    _fact(
        "how do I clear the chat|what does /reset do|how do I start a new chat|what is /reset|how do I forget the chat",
        "Type /reset to clear the chat.",
        "怎么清空对话|/reset 有什么用|怎么重新开始对话|/reset 是什么|如何清除对话",
        "输入 /reset 可以清空对话。",
    ),
    _fact(
        "how do I quit|what does /quit do|how do I leave the program|what is /quit|how do I exit",
        "Type /quit to leave the program.",
        "怎么退出|/quit 有什么用|怎么离开程序|/quit 是什么|如何退出程序",
        "输入 /quit 可以退出程序。",
    ),
    _fact(
        "how do I turn thinking on|what does /think do|how do I turn thinking off|what is /think"
        "|how do I switch thinking",
        "Type /think on to turn thinking on and /think off to turn it off.",
        "怎么打开思考|/think 有什么用|怎么关闭思考|/think 是什么|如何切换思考",
        "输入 /think on 打开思考，输入 /think off 关闭思考。",
    ),
    _fact(
        "how do I see the speed|what does /stats do|what is /stats|how do I see statistics|how fast are you",
        "Type /stats to see the speed.",
        "怎么看速度|/stats 有什么用|/stats 是什么|怎么看统计|你有多快",
        "输入 /stats 可以查看速度。",
    ),
    _fact(
        "how do I get help|what does /help do|what is /help|which commands are there|how do I see all commands",
        "Type /help to see all commands.",
        "怎么获得帮助|/help 有什么用|/help 是什么|有哪些命令|怎么看所有命令",
        "输入 /help 可以查看所有命令。",
    ),
    _fact(
        "how do I choose the context|what does --context do|what is --context|how do I set a longer context"
        "|how do I set the context length",
        "Use --context with a size from 4K to 256K.",
        "怎么选择上下文|--context 有什么用|--context 是什么|怎么设置更长的上下文|如何设置上下文长度",
        "用 --context 加上 4K 到 256K 的长度。",
    ),
    _fact(
        "what does --kv-cache do|what is --kv-cache|how do I choose the cache type|which cache types are there"
        "|how do I set the cache format",
        "Use --kv-cache with bf16, fp16, fp8 or int8.",
        "--kv-cache 有什么用|--kv-cache 是什么|怎么选择缓存类型|有哪些缓存类型|如何设置缓存格式",
        "用 --kv-cache 加上 bf16、fp16、fp8 或 int8。",
    ),
    _fact(
        "how do I try it without a download|what does --demo do|what is --demo|how do I run the demo"
        "|how do I start the built-in model",
        "Run mindnano-infer --demo; it starts the small built-in model.",
        "不下载怎么试用|--demo 有什么用|--demo 是什么|怎么运行演示|怎么启动自带的模型",
        "运行 mindnano-infer --demo，它会启动自带的小模型。",
    ),
    _fact(
        "what does --host do|what is --host|how do I set the address of the server|which address does the server use",
        "Use --host to set the address of the server.",
        "--host 有什么用|--host 是什么|怎么设置服务的地址|服务用哪个地址",
        "用 --host 设置服务的地址。",
    ),
    _fact(
        "what does --no-console do|what is --no-console|how do I run only the server|how do I start without a chat",
        "Use --no-console to run only the server.",
        "--no-console 有什么用|--no-console 是什么|怎么只运行服务|怎么启动时不进入对话",
        "用 --no-console 只运行服务。",
    ),
    _fact(
        "what is the model id of the server|which model id do I send|what is mindnano-ling3-tiny"
        "|what model name does the API use",
        "The model id is mindnano-ling3-tiny.",
        "服务的模型名是什么|要填哪个模型名|mindnano-ling3-tiny 是什么|API 用什么模型名",
        "模型名是 mindnano-ling3-tiny。",
    ),
    _fact(
        "how do I check that the server is alive|what does /health do|what is /health|which path tells the health",
        "Use GET /health to check the server.",
        "怎么检查服务是否正常|/health 有什么用|/health 是什么|哪个路径看健康状态",
        "用 GET /health 检查服务。",
    ),
)

BOARD: Final = (
    _fact(
        "what is the RK3588|describe the RK3588|tell me about the RK3588|explain the RK3588",
        "The RK3588 is an eight-core Arm chip from Rockchip with an NPU.",
        "RK3588 是什么|什么是 RK3588|介绍一下 RK3588|说说 RK3588",
        "RK3588 是瑞芯微的八核 Arm 芯片，带有 NPU。",
    ),
    _fact(
        "how many CPU cores does the RK3588 have|what CPU is in the RK3588|which cores does the RK3588 have"
        "|what are the CPU cores of the RK3588|how many cores has the RK3588",
        "The RK3588 has 8 CPU cores: 4 Cortex-A76 and 4 Cortex-A55.",
        "RK3588 有几个 CPU 核心|RK3588 的 CPU 是什么|RK3588 是几核的|RK3588 有多少核心|RK3588 有哪些核心",
        "RK3588 有 8 个 CPU 核心：4 个 Cortex-A76 和 4 个 Cortex-A55。",
    ),
    _fact(
        "how fast is the NPU of the RK3588|how many TOPS does the RK3588 have|does the RK3588 have an NPU"
        "|what NPU is in the RK3588|how many NPU cores does the RK3588 have",
        "The RK3588 NPU has 3 cores and reaches 6 TOPS.",
        "RK3588 的 NPU 算力是多少|RK3588 的 NPU 有多快|RK3588 有 NPU 吗|RK3588 有多少 TOPS|RK3588 的 NPU 有几个核心",
        "RK3588 的 NPU 有 3 个核心，算力是 6 TOPS。",
    ),
    _fact(
        "what GPU does the RK3588 have|which GPU is in the RK3588|what is the GPU of the RK3588"
        "|does the RK3588 have a GPU",
        "The GPU of the RK3588 is a Mali-G610 MP4.",
        "RK3588 的 GPU 是什么|RK3588 用什么 GPU|RK3588 用什么显卡|RK3588 有 GPU 吗",
        "RK3588 的 GPU 是 Mali-G610 MP4。",
    ),
    _fact(
        "in which process is the RK3588 made|how many nanometres is the RK3588|what process node has the RK3588"
        "|what is the process of the RK3588",
        "The RK3588 is made in an 8 nm process.",
        "RK3588 用什么工艺制造|RK3588 的制程是多少|RK3588 是几纳米的|RK3588 的工艺是什么",
        "RK3588 采用 8 纳米工艺。",
    ),
    _fact(
        "how much memory does the RK3588 support|what is the memory limit of the RK3588"
        "|how much RAM can the RK3588 have|what is the largest memory of the RK3588",
        "The RK3588 supports up to 32 GB of memory.",
        "RK3588 最多支持多少内存|RK3588 的内存上限是多少|RK3588 支持多大内存|RK3588 能装多少内存",
        "RK3588 最多支持 32 GB 内存。",
    ),
    _fact(
        "who makes the RK3588|which company makes the RK3588|who is the maker of the RK3588|who built the RK3588",
        "The RK3588 is made by Rockchip.",
        "谁生产 RK3588|RK3588 是哪家公司的|RK3588 的厂商是谁|RK3588 是谁做的",
        "RK3588 由瑞芯微生产。",
    ),
)

WORLD: Final = (
    _fact(
        "how many parameters does Ling-3.0-tiny have|how big is Ling-3.0-tiny|what is the size of Ling-3.0-tiny"
        "|how large is Ling-3.0-tiny",
        "Ling-3.0-tiny has 7.9 billion parameters, 1.3 billion active per token.",
        "Ling-3.0-tiny 有多少参数|Ling-3.0-tiny 有多大|Ling-3.0-tiny 的参数量是多少|Ling-3.0-tiny 多大",
        "Ling-3.0-tiny 有 79 亿参数，每个词激活 13 亿。",
    ),
    _fact(
        "what licence does Ling-3.0-tiny have|what is the licence of Ling-3.0-tiny|is Ling-3.0-tiny free to use"
        "|which licence has Ling-3.0-tiny",
        "Ling-3.0-tiny has the MIT licence.",
        "Ling-3.0-tiny 的许可证是什么|Ling-3.0-tiny 用什么许可证|Ling-3.0-tiny 能免费用吗|Ling-3.0-tiny 是什么许可",
        "Ling-3.0-tiny 使用 MIT 许可证。",
    ),
    _fact(
        "what is the capital of China|which city is the capital of China|what is China's capital",
        "The capital of China is Beijing.",
        "中国的首都是哪里|中国的首都是什么|中国首都是哪个城市",
        "中国的首都是北京。",
    ),
    _fact(
        "what is the capital of France|which city is the capital of France|what is France's capital",
        "The capital of France is Paris.",
        "法国的首都是哪里|法国的首都是什么|法国首都是哪个城市",
        "法国的首都是巴黎。",
    ),
    _fact(
        "how many months are in a year|how many months does a year have|how many months has a year",
        "A year has 12 months.",
        "一年有几个月|一年有多少个月|一年有多少月",
        "一年有 12 个月。",
    ),
    _fact(
        "how many days are in a week|how many days does a week have|how many days has a week",
        "A week has 7 days.",
        "一周有几天|一个星期有几天|一周有多少天",
        "一周有 7 天。",
    ),
)

FACTS: Final = PROGRAM + BOARD + WORLD

UNKNOWN_ANSWER: Final = "I do not know that. I am only the small built-in model."
UNKNOWN_ANSWER_ZH: Final = "这个我不知道。我只是自带的小模型。"
UNKNOWN_QUESTIONS: Final = _wordings(
    "who won the world cup|what is the weather today|what time is it|write a poem about {w}|tell me a joke"
    "|tell me a story about {w}|how do I cook {w}|what is the meaning of life|who wrote Hamlet|explain {w} to me"
    "|translate {w} into French|what is the price of {w}|how do I build a {w}|why is the sky blue|what is the news"
    "|who is the president|write code for a {w}|sing a song about {w}|where can I buy {w}|how far is the {w}"
    "|what do you think about {w}|recommend a film|what is quantum physics|when was Rome founded|how old is the {w}"
    "|who invented the {w}|plan my holiday|what should I eat|is the {w} better than the {v}|what is the capital of Mars"
    "|what is love|can you draw a {w}|how tall is the {w}|what is my phone number|which {w} is the best"
)
UNKNOWN_QUESTIONS_ZH: Final = _wordings(
    "谁赢了世界杯|今天天气怎么样|现在几点了|写一首关于{w}的诗|讲个笑话|讲一个{w}的故事|{w}怎么做|人生的意义是什么"
    "|红楼梦是谁写的|解释一下{w}|把{w}翻译成法语|{w}多少钱|怎么造一个{w}|天空为什么是蓝的|有什么新闻|总统是谁"
    "|写一段{w}的代码|唱一首{w}的歌|哪里能买到{w}|{w}有多远|你觉得{w}怎么样|推荐一部电影|什么是量子物理|罗马是哪年建的"
    "|{w}有多少年了|谁发明了{w}|帮我安排假期|我该吃什么|{w}和{v}哪个好|火星的首都是哪里|什么是爱|你会画{w}吗|{w}有多高"
    "|我的电话是多少|哪个{w}最好"
)
