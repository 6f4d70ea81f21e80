"""What runs inside a stage process, and the contract for the engines it runs."""

from stage.engine import Engine, Output, RequestError

__all__ = ["Engine", "Output", "RequestError"]
