#!/usr/bin/env python3
"""Finds source files that import each other, directly or in a circle.

A module and the files inside it may know each other; any other circle is an error.
An import counts for the file that defines the name, not for the one that re-exports it.
Tests inside a source file are not looked at.
"""

import pathlib
import re
import sys

CRATES = {
    "emel_kernels": "kernels/src",
    "emel_loader": "loader/src",
    "emel_model": "model/src",
    "emel_systemd": "systemd/src",
    "emel": "runtime/src",
    "emel_cli": "runtime/cli/src",
    "emel_tests": "tests/src",
    "emel_bench": "bench/src",
}
# Comments, texts and characters: whichever begins first.
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(?P<hashes>#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*\"|'(?:\\.[^']*|[^'\\])'""",
    re.S,
)
TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{")
USE = re.compile(r"\b(pub(?:\([^)]*\))? )?use ([^;]+);")
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")


def code_of(path):
    """The file's code without comments, texts and tests."""
    text = NO_CODE.sub("", path.read_text())
    tests = TESTS.search(text)
    return text[: tests.start()] if tests else text


def leaves(tree):
    """The paths of a `use` tree, each a list of names; the last may be renamed."""
    tree = tree.strip()
    if "{" not in tree:
        name, _, renamed = tree.partition(" as ")
        yield name.split("::"), (renamed or name.split("::")[-1]).strip()
        return
    prefix, _, rest = tree.partition("{")
    depth, start, inside = 0, 0, rest[: rest.rindex("}")]
    parts = []
    for at, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
    parts.append(inside[start:])
    for part in filter(str.strip, parts):
        yield from leaves(prefix.strip() + part.strip())


class Crate:
    """The modules of a crate, by path of names, and what they import."""

    def __init__(self, name, folder):
        self.name = name
        self.files = {}
        for path in sorted(folder.rglob("*.rs")):
            names = list(path.relative_to(folder).with_suffix("").parts)
            if names[0] == "bin":
                continue
            if names[-1] in ("mod", "lib"):
                names.pop()
            self.files[tuple(names)] = path
        self.code = {names: code_of(path) for names, path in self.files.items()}
        self.exported = {names: self.exports(names) for names in self.files}

    def exports(self, module):
        """What a module re-exports: its name there, and the path it stands for."""
        exports = {}
        for public, tree in USE.findall(self.code[module]):
            if public:
                for path, name in leaves(tree):
                    exports[name] = path
        return exports

    def absolute(self, module, path):
        """A path from the crate's root, or none if it is of another crate."""
        path = [part for part in path if part]
        if path[0] == "crate":
            return path[1:]
        here = list(module)
        if path[0] == "self":
            return here + path[1:]
        if path[0] == "super":
            while path and path[0] == "super":
                here.pop()
                path = path[1:]
            return here + path
        return here + path if tuple(here + path[:1]) in self.files else None

    def defining(self, module, path, seen=()):
        """The module whose file defines what a path names."""
        path = self.absolute(module, path)
        if path is None:
            return None
        length = max(n for n in range(len(path) + 1) if tuple(path[:n]) in self.files)
        found, rest = tuple(path[:length]), path[length:]
        if rest and rest[0] in self.exported[found] and (found, rest[0]) not in seen:
            inner = self.exported[found][rest[0]] + rest[1:]
            return self.defining(found, inner, (*seen, (found, rest[0]))) or found
        return found

    def imports(self, module):
        """The modules that a module's file uses, apart from those inside or around it."""
        code = self.code[module]
        paths = [path for _, tree in USE.findall(code) for path, _ in leaves(tree)]
        paths += [found.split("::") for found in PATH.findall(USE.sub("", code))]
        targets = {self.defining(module, path) for path in paths if path != ["super", "*"]}
        return {
            target
            for target in targets - {None, module}
            if target[: len(module)] != module and module[: len(target)] != target
        }


def circles(graph):
    """The groups of nodes that reach each other (Tarjan's algorithm)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(stack[at:])
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    count = 0
    for name, folder in CRATES.items():
        crate = Crate(name, root / folder)
        graph = {module: sorted(crate.imports(module)) for module in crate.files}
        for circle in circles(graph):
            count += 1
            print(f"{name}: these files import each other:")
            for module in sorted(circle):
                within = ["::".join(target) for target in graph[module] if target in circle]
                print(f"  {crate.files[module].relative_to(root)} imports {', '.join(within)}")
    if count:
        sys.exit(f"{count} circles of imports; move what both need to a file of its own")
    print("no two files import each other")


if __name__ == "__main__":
    main()
