#!/usr/bin/env python3
"""Writes tests/fixtures/chat/folder_golden.json: the hashes of what Python's jinja2 renders
for the templates in a folder and the conversations of folder_conversations.json, in the
environment of Hugging Face's transformers.

    render_folder.py FOLDER

The committed hashes are of `models/templates` in llama.cpp's source, as PyPI's
`llama-cpp-python` 0.3.36 has it. Needs `pip install jinja2`.
"""

import json
import pathlib
import sys

import jinja2
from render_reference import FOLDER, environment


def fnv(text):
    """FNV-1a with 64 bits."""
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


def rendered(source, request):
    """The hash of the text, or of what the template says in refusing; else `error`."""
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    variables |= request.get("chat_template_kwargs", {})
    for name in ("messages", "tools", "documents", "add_generation_prompt"):
        variables[name] = request.get(name)
    try:
        return fnv(environment().from_string(source).render(**variables))
    except jinja2.exceptions.TemplateError as error:
        refused = type(error) is jinja2.exceptions.TemplateError
        return "refused " + fnv(str(error)) if refused else "error"
    except Exception:
        return "error"


def main():
    requests = json.loads((FOLDER / "folder_conversations.json").read_text("utf-8"))
    golden = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        source = path.read_bytes().decode()
        results = {name: rendered(source, request) for name, request in requests.items()}
        golden[path.name] = {"source": fnv(source), "rendered": results}
    text = json.dumps(golden, indent=1) + "\n"
    (FOLDER / "folder_golden.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
