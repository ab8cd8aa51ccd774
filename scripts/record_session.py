#!/usr/bin/env python3
"""Records a command in a terminal and writes it as an animated SVG, such as docs/session.svg.

    cargo build --release -p emel-cli --bin emel
    scripts/record_session.py docs/session.svg --type "Why is the sky blue?" --type /exit -- \\
        emel run models/SmolLM2-135M-Instruct.Q4_1.gguf --ram-budget 64M --temp 0

Each text of --type is typed, letter by letter, once the screen has been still for a moment. The
program is that of the release build, in CARGO_TARGET_DIR if that is set.
"""

import argparse
import codecs
import html
import os
import pathlib
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from fcntl import ioctl

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 84, 22
CHARACTER_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 18, 14
STILL_SECONDS = 1.2
KEY_SECONDS = 0.05
# What is shown after the end, before it begins again.
PAUSE_SECONDS = 4
FOREGROUND, DIMMED = "#d8dee9", "#8b95a8"
# By the numbers that choose them, from 30 on.
COLOURS = ["#4c566a", "#bf616a", "#a3be8c", "#ebcb8b", "#81a1c1", "#b48ead", "#88c0d0", "#eceff4"]
# A sequence for the terminal: its parameters and its kind.
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--type", action="append", default=[], dest="texts")
    parser.add_argument("--seconds-max", type=float, default=90)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        frames = record(options, folder)
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(svg(frames))
    print(f"{options.output}: {len(frames)} screens in {frames[-1][0]:.1f} s")


class Screen:
    """What a terminal shows, as far as emel makes use of one."""

    def __init__(self):
        self.rows = [self.empty() for _ in range(ROWS)]
        self.row, self.column = 0, 0
        # Its colour, and whether it is bold.
        self.style = (FOREGROUND, False)
        self.rest = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def empty(self):
        return [(" ", (FOREGROUND, False))] * COLUMNS

    def feed(self, data):
        text, self.rest = self.rest + self.decoder.decode(data), ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self.put(text[at])
                at += 1
            elif found := SEQUENCE.match(text, at):
                self.obey(found[1], found[2])
                at = found.end()
            elif len(text) - at < 16:
                # The other half of a sequence comes later.
                self.rest = text[at:]
                return
            else:
                sys.exit(f"a sequence that is not known: {text[at : at + 16]!r}")

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.down()
        elif character >= " ":
            if self.column == COLUMNS:
                self.column = 0
                self.down()
            self.rows[self.row][self.column] = (character, self.style)
            self.column += 1

    def down(self):
        if self.row + 1 < ROWS:
            self.row += 1
        else:
            self.rows = self.rows[1:] + [self.empty()]

    def obey(self, parameters, kind):
        if parameters.startswith("?"):
            return
        numbers = [int(number or 0) for number in parameters.split(";")]
        count = max(numbers[0], 1)
        blank = self.empty()
        if kind == "A":
            self.row = max(self.row - count, 0)
        elif kind == "B":
            self.row = min(self.row + count, ROWS - 1)
        elif kind == "C":
            self.column = min(self.column + count, COLUMNS - 1)
        elif kind == "D":
            self.column = max(self.column - count, 0)
        elif kind == "G":
            self.column = min(count, COLUMNS) - 1
        elif kind == "K":
            first = 0 if numbers[0] in (1, 2) else self.column
            last = self.column + 1 if numbers[0] == 1 else COLUMNS
            self.rows[self.row][first:last] = blank[first:last]
        elif kind == "J" and numbers[0] == 0:
            self.rows[self.row][self.column :] = blank[self.column :]
            for row in range(self.row + 1, ROWS):
                self.rows[row] = self.empty()
        elif kind == "m":
            for number in numbers:
                self.choose(number)
        else:
            sys.exit(f"a sequence that is not known: {parameters}{kind}")

    def choose(self, number):
        colour, is_bold = self.style
        if number == 0:
            colour, is_bold = FOREGROUND, False
        elif number == 1:
            is_bold = True
        elif number == 2:
            colour = DIMMED
        elif 30 <= number <= 37:
            colour = COLOURS[number - 30]
        elif number == 39:
            colour = FOREGROUND
        self.style = (colour, is_bold)

    def runs(self):
        """Each row as runs of (text, (colour, is bold))."""
        rows = []
        for row in self.rows:
            runs = []
            for character, style in row:
                if runs and runs[-1][1] == style:
                    runs[-1][0].append(character)
                else:
                    runs.append(([character], style))
            while runs and not "".join(runs[-1][0]).strip():
                runs.pop()
            rows.append(tuple(("".join(text), style) for text, style in runs))
        return tuple(rows)


def program(name):
    """The program of the release build."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    path = target / "release" / name
    if not path.exists():
        sys.exit(f"{path} is missing; build it: cargo build --release -p emel --bin {name}")
    return path


def start(command, folder):
    """Starts the command in a terminal of its own. What it keeps goes to the folder."""
    path = program(command[0])
    child, terminal = pty.fork()
    if child == 0:
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ.update(TERM="xterm-256color", XDG_STATE_HOME=folder)
        os.environ.pop("NO_COLOR", None)
        os.execv(path, command)
    return child, terminal


def record(options, folder):
    """The screens, each with the second at which it appeared."""
    screen = Screen()
    child, terminal = start(options.command, folder)
    shown = "$ " + " ".join(quoted(word) for word in options.command)
    screen.feed((shown + "\r\n").encode())
    frames = [(0.0, screen.runs())]
    start_time = time.monotonic()
    last_change = start_time
    keys = [list(text) + ["\r"] for text in options.texts]
    while time.monotonic() - start_time < options.seconds_max:
        ready, _, _ = select.select([terminal], [], [], KEY_SECONDS)
        now = time.monotonic()
        if ready:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            screen.feed(data)
            rows = screen.runs()
            if rows != frames[-1][1]:
                frames.append((now - start_time, rows))
                last_change = now
        elif keys and now - last_change > (STILL_SECONDS if keys[0][0] != "\r" else 0.3):
            while keys[0]:
                os.write(terminal, keys[0].pop(0).encode())
                last_change = time.monotonic()
                if not keys[0] or keys[0][0] == "\r":
                    break
                # The letters of one text follow each other quickly.
                time.sleep(KEY_SECONDS)
                if select.select([terminal], [], [], 0)[0]:
                    screen.feed(os.read(terminal, 65536))
                    frames.append((time.monotonic() - start_time, screen.runs()))
            if not keys[0]:
                keys.pop(0)
    try:
        os.kill(child, signal.SIGTERM)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    return frames


def quoted(word):
    return f'"{word}"' if " " in word else word


def svg(frames):
    """Each state of each row is a text that is visible from its second to that of the next."""
    end = frames[-1][0] + PAUSE_SECONDS
    width = COLUMNS * CHARACTER_WIDTH + 2 * MARGIN
    height = ROWS * LINE_HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="A conversation in a terminal">',
        "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}</style>",
        f'<rect width="100%" height="100%" rx="8" fill="#2e3440">'
        f'<animate id="loop" attributeName="x" from="0" to="0" dur="{end:.2f}s" '
        'begin="0s;loop.end"/></rect>',
    ]
    for row in range(ROWS):
        states = [(frames[0][0], frames[0][1][row])]
        for second, rows in frames[1:]:
            if rows[row] != states[-1][1]:
                states.append((second, rows[row]))
        for index, (second, runs) in enumerate(states):
            if runs:
                until = states[index + 1][0] if index + 1 < len(states) else end
                out.append(text(row, runs, second, until))
    return "\n".join(out) + "\n</svg>\n"


def text(row, runs, begin, end):
    y = MARGIN + (row + 0.8) * LINE_HEIGHT
    spans, column = [], 0
    for content, (colour, is_bold) in runs:
        weight = ' font-weight="bold"' if is_bold else ""
        x = MARGIN + column * CHARACTER_WIDTH
        spans.append(f'<tspan x="{x:.1f}" fill="{colour}"{weight}>{html.escape(content)}</tspan>')
        column += len(content)
    return (
        f'<text xml:space="preserve" y="{y:.1f}" visibility="hidden">{"".join(spans)}'
        f'<set attributeName="visibility" to="visible" begin="loop.begin+{begin:.2f}s" '
        f'dur="{max(end - begin, 0.01):.2f}s"/></text>'
    )


if __name__ == "__main__":
    sys.exit(main())
