"""What a client did wrong, as a status and one line."""


class RefusedError(Exception):
    """A request that is answered with `status` and {"error": message}."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
