"""The server: an OpenAI-style HTTP endpoint in front of one engine."""
