#!/usr/bin/env python3
"""Writes tests/fixtures/chat/golden.json: every template there rendered by Python's
jinja2 for every conversation, with the settings of Hugging Face's transformers.

Needs `pip install jinja2`. Run it from anywhere after a template or a conversation has
changed.
"""

import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "chat"
NOW = datetime.datetime(2026, 3, 5, 14, 7, 9, tzinfo=datetime.timezone.utc)

SPECIAL = {
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "gemma3": ("<bos>", "<eos>"),
    "mistral": ("<s>", "</s>"),
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
}


class Generation(Extension):
    """Marks what the assistant has said; the text inside is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_passed_through", [])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _passed_through(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


def simplified(messages):
    """For templates that take text only: parts joined, arguments as JSON text."""
    for message in messages:
        message = dict(message)
        if isinstance(message.get("content"), list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
        if "tool_calls" in message:
            calls = [dict(call, function=dict(call["function"])) for call in message["tool_calls"]]
            for call in calls:
                arguments = call["function"]["arguments"]
                call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
            message["tool_calls"] = calls
        yield message


def takes_parts(text, messages):
    """Whether a template has not dropped the parts of a message or written them as Python."""
    contents = [message.get("content") for message in messages]
    parts = [part["text"] for content in contents if isinstance(content, list) for part in content]
    return all(part in text for part in parts) and not (parts and "'type'" in text)


def render(template, conversation, special):
    variables = {name: text for name, text in zip(("bos_token", "eos_token"), special) if text}
    variables |= conversation.get("chat_template_kwargs", {})
    for name in ("tools", "documents"):
        variables[name] = conversation.get(name)
    variables["add_generation_prompt"] = conversation["add_generation_prompt"]
    messages = conversation["messages"]
    try:
        try:
            text = template.render(messages=messages, **variables)
            if takes_parts(text, messages):
                return {"text": text}
        except TypeError:
            pass
        return {"text": template.render(messages=list(simplified(messages)), **variables)}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}


def main():
    conversations = json.loads((FOLDER / "conversations.json").read_text("utf-8"))
    golden = {}
    for path in sorted(FOLDER.glob("*.jinja")):
        special = SPECIAL.get(path.stem, (None, None))
        template = environment().from_string(path.read_text("utf-8"))
        golden[path.stem] = {
            "bos_token": special[0],
            "eos_token": special[1],
            "rendered": {
                name: render(template, conversation, special)
                for name, conversation in conversations.items()
            },
        }
    text = json.dumps(golden, ensure_ascii=False, indent=1) + "\n"
    (FOLDER / "golden.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
