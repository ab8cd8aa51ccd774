"""Where the figures of a benchmark go."""

import argparse
import pathlib


def result_file(text):
    """A place for a result, which replaces no model and is refused before the work begins."""
    path = pathlib.Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: expected a file in a folder that is there")
    if path.is_file() and path.open("rb").read(4) == b"GGUF":
        raise argparse.ArgumentTypeError(f"{path}: this is a model; choose another name")
    return path
