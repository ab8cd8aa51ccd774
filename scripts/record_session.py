#!/usr/bin/env python3
"""Records a command in a terminal and writes it as an animated SVG, such as docs/session.svg.

    pip install pyte
    scripts/record_session.py docs/session.svg --type "Why is the sky blue?" --type /exit -- \\
        emel run models/SmolLM2-135M-Instruct.Q4_1.gguf --ram-budget 64M --temp 0

Each text of --type is typed, letter by letter, once the screen has been still for a moment.
"""

import argparse
import html
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from fcntl import ioctl

import pyte

COLUMNS, ROWS = 84, 22
CHARACTER_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 18, 14
STILL_SECONDS = 1.2
KEY_SECONDS = 0.05
# What is shown after the end, before it begins again.
PAUSE_SECONDS = 4
COLOURS = {
    "default": "#d8dee9", "black": "#4c566a", "red": "#bf616a", "green": "#a3be8c",
    "brown": "#ebcb8b", "blue": "#81a1c1", "magenta": "#b48ead", "cyan": "#88c0d0",
    "white": "#eceff4",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--type", action="append", default=[], dest="texts")
    parser.add_argument("--seconds-max", type=float, default=90)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    frames = record(options)
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(svg(frames))
    print(f"{options.output}: {len(frames)} screens in {frames[-1][0]:.1f} s")


def record(options):
    """The screens, each with the second at which it appeared."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(options.command[0], options.command)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    shown = "$ " + " ".join(quoted(word) for word in options.command)
    stream.feed((shown + "\r\n").encode())
    frames = [(0.0, rows_of(screen))]
    start = time.monotonic()
    last_change = start
    keys = [list(text) + ["\r"] for text in options.texts]
    while time.monotonic() - start < options.seconds_max:
        ready, _, _ = select.select([terminal], [], [], KEY_SECONDS)
        now = time.monotonic()
        if ready:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                break
            if not data:
                break
            stream.feed(data)
            rows = rows_of(screen)
            if rows != frames[-1][1]:
                frames.append((now - start, rows))
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
                    stream.feed(os.read(terminal, 65536))
                    frames.append((time.monotonic() - start, rows_of(screen)))
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


def rows_of(screen):
    """Each row as runs of (text, colour, is bold, is dim by colour)."""
    rows = []
    for number in range(ROWS):
        line, runs = screen.buffer[number], []
        for column in range(COLUMNS):
            cell = line[column]
            style = (cell.fg, cell.bold)
            if runs and runs[-1][1] == style:
                runs[-1][0].append(cell.data)
            else:
                runs.append(([cell.data], style))
        while runs and not "".join(runs[-1][0]).strip():
            runs.pop()
        rows.append(tuple(("".join(text), style) for text, style in runs))
    return tuple(rows)


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
    for content, (colour, bold) in runs:
        fill = COLOURS.get(colour, "#" + colour if len(colour) == 6 else COLOURS["default"])
        weight = ' font-weight="bold"' if bold else ""
        x = MARGIN + column * CHARACTER_WIDTH
        spans.append(f'<tspan x="{x:.1f}" fill="{fill}"{weight}>{html.escape(content)}</tspan>')
        column += len(content)
    return (
        f'<text xml:space="preserve" y="{y:.1f}" visibility="hidden">{"".join(spans)}'
        f'<set attributeName="visibility" to="visible" begin="loop.begin+{begin:.2f}s" '
        f'dur="{max(end - begin, 0.01):.2f}s"/></text>'
    )


if __name__ == "__main__":
    sys.exit(main())
