"""The dialects of the gateway: pure functions between JSON and requests or replies.

Each module has `parse(body, chat) -> Asked`, `body_of(asked, replies) -> dict`, and, where replies
can be streamed, `events(asked, replies) -> Iterator[(event, dict)]`.
"""
