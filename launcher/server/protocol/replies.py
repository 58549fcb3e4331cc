"""Everything that turns events and errors into the JSON of an answer."""

from launcher.server.protocol.chat_replies import ChatReply, ChatStream
from launcher.server.protocol.completion_replies import CompletionReply, CompletionStream
from launcher.server.protocol.errors import error_body
from launcher.server.protocol.responses_replies import ResponsesReply, ResponsesStream

__all__ = [
    "ChatReply",
    "ChatStream",
    "CompletionReply",
    "CompletionStream",
    "ResponsesReply",
    "ResponsesStream",
    "error_body",
]
