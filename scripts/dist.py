#!/usr/bin/env python3
"""Makes the archive that is handed out: one static program for x86-64 Linux.

The archive holds the program under its two names, man pages, completions, documentation and
licences, those of all linked crates included. Beside it goes SHA256SUMS.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# musl needs nothing of the machine. glibc linked statically does as well here: emel resolves
# no host or user names, which alone would load libraries at run time.
TARGETS = ["x86_64-unknown-linux-musl", "x86_64-unknown-linux-gnu"]
PROFILE = "dist"
LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")
TEXTS = ["README.md", "ARCHITECTURE.md", "SECURITY.md", "LICENSE-MIT", "LICENSE-APACHE"]
COMPLETIONS = {
    "bash": "share/bash-completion/completions/{}",
    "fish": "share/fish/vendor_completions.d/{}.fish",
    "zsh": "share/zsh/site-functions/_{}",
}
PT_INTERP = 3


def output(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout


def installed_target(wanted):
    for target in [wanted] if wanted else TARGETS:
        libraries = output(["rustc", "--print", "target-libdir", "--target", target])
        if pathlib.Path(libraries.decode().strip()).is_dir():
            return target
    raise RuntimeError(
        f"no standard library for {wanted or ' or '.join(TARGETS)}; "
        f"install one with `rustup target add {wanted or TARGETS[0]}`"
    )


def build(cargo, target):
    """Builds the program; returns its path."""
    flags = f'target.{target}.rustflags=["-C", "target-feature=+crt-static"]'
    command = [cargo, "build", "--locked", "--profile", PROFILE, "--target", target]
    command += ["--config", flags, "-p", "emel-cli", "--bin", "emel"]
    subprocess.run(command, check=True, cwd=ROOT)
    folder = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    program = pathlib.Path(folder) / target / PROFILE / "emel"
    if needs_loader(program):
        raise RuntimeError(
            f"{program} is linked dynamically, expected a static program; unset RUSTFLAGS"
        )
    return program


def needs_loader(program):
    """Whether the ELF file asks for a dynamic loader."""
    with open(program, "rb") as file:
        header = file.read(64)
        (start,) = struct.unpack_from("<Q", header, 32)
        entry_bytes, entries = struct.unpack_from("<HH", header, 54)
        file.seek(start)
        table = file.read(entry_bytes * entries)
    kinds = [
        struct.unpack_from("<I", table, index * entry_bytes)[0]
        for index in range(entries)
    ]
    return PT_INTERP in kinds


def linked_crates(cargo, target):
    """The packages whose code is in the program, by name and version."""
    command = [cargo, "metadata", "--locked", "--format-version", "1"]
    metadata = json.loads(output(command + ["--filter-platform", target]))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    (program,) = [id for id, package in packages.items() if package["name"] == "emel-cli"]
    found, waiting = set(), [program]
    while waiting:
        package = waiting.pop()
        kinds = {kind for item in packages[package]["targets"] for kind in item["kind"]}
        if package in found or "proc-macro" in kinds:
            continue
        found.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    others = [packages[id] for id in found if packages[id]["source"] is not None]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def licences(crates, target):
    """The licences of all crates as one text."""
    text = "emel is linked with the Rust standard library (MIT OR Apache-2.0)"
    if target.endswith("musl"):
        text += ", musl (MIT)"
    else:
        text += ", glibc (LGPL-2.1-or-later; it can be linked again from emel's source)"
    text += "\nand these crates:\n\n"
    for crate in crates:
        text += f"  {crate['name']} {crate['version']}: {crate['license']}\n"
    for crate in crates:
        folder = pathlib.Path(crate["manifest_path"]).parent
        files = sorted(
            file
            for file in folder.iterdir()
            if file.is_file() and file.name.upper().startswith(LICENCE_FILES)
        )
        text += f"\n{'=' * 80}\n{crate['name']} {crate['version']}: {crate['license']}\n"
        if not files:
            authors = ", ".join(crate["authors"]) or crate["repository"]
            text += f"\nThe crate has no licence file. By {authors}.\n"
        for file in files:
            content = file.read_text(encoding="utf-8", errors="replace")
            text += f"\n{'-' * 20} {file.name}\n\n{content}"
    return text.encode()


def contents(program, crates, target):
    """The archive's files: names and (mode, bytes); a link has no mode."""
    files = {
        "emel": (0o755, program.read_bytes()),
        "emel-run": (None, b"emel"),
        "LICENSES-OF-CRATES.txt": (0o644, licences(crates, target)),
    }
    for path in [ROOT / name for name in TEXTS] + sorted((ROOT / "docs").iterdir()):
        files[str(path.relative_to(ROOT))] = (0o644, path.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        output([program, "man", folder])
        for manual in pathlib.Path(folder).iterdir():
            files[f"share/man/man1/{manual.name}"] = (0o644, manual.read_bytes())
    for shell, place in COMPLETIONS.items():
        for name in ["emel", "emel-run"]:
            script = output([program, "completions", shell, "--of", name])
            files[place.format(name)] = (0o644, script)
    return files


def write_archive(path, stem, files):
    """The same bytes for the same files: no times, no owners."""
    with open(path, "wb") as raw:
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
        with packed, tarfile.open(mode="w", fileobj=packed, format=tarfile.USTAR_FORMAT) as archive:
            for name in sorted(files):
                mode, content = files[name]
                entry = tarfile.TarInfo(f"{stem}/{name}")
                if mode is None:
                    entry.type, entry.linkname = tarfile.SYMTYPE, content.decode()
                    entry.mode = 0o777
                    archive.addfile(entry)
                    continue
                entry.mode, entry.size = mode, len(content)
                archive.addfile(entry, io.BytesIO(content))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/archive")
    parser.add_argument("--target", choices=TARGETS, help="instead of the first installed")
    options = parser.parse_args()
    cargo = os.environ.get("CARGO", "cargo")
    try:
        target = installed_target(options.target)
        program = build(cargo, target)
        version = output([program, "--version"]).decode().split()[-1]
        stem = f"emel-{version}-x86_64-linux"
        crates = linked_crates(cargo, target)
        options.out.mkdir(parents=True, exist_ok=True)
        files = contents(program, crates, target)
        archive = options.out / f"{stem}.tar.gz"
        write_archive(archive, stem, files)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (options.out / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    print(f"{archive}: {archive.stat().st_size} bytes, {target}, {len(crates)} crates")


if __name__ == "__main__":
    main()
