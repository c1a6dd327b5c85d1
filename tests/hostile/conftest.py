"""The sandboxes of tests/sandbox, for policies that mean harm."""

from tests.sandbox.conftest import in_box, play, report

__all__ = ["in_box", "play", "report"]
