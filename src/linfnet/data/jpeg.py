"""The number of scans of a JPEG file, which limits the time that it takes to decode."""

# A progressive JPEG has about ten scans. Each scan costs milliseconds for a large picture, but only a few bytes.
MAX_SCANS = 100


def count_scans(content: bytes) -> int:
    """Return the number of scans of a JPEG file, and 1 for other files.

    >>> count_scans(b"GIF89a")
    1
    """
    # Within compressed data, 0xff is always followed by another byte than 0xda.
    return content.count(b"\xff\xda") if content.startswith(b"\xff\xd8") else 1
