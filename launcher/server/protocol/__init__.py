"""The OpenAI protocol as pure functions: bytes to typed requests, events to JSON. Nothing here knows HTTP."""
