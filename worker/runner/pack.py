"""Packs the interpreter that runs this, with Hermes, into one folder that needs nothing of the system around it: its own
C library and loader too. So it runs in any Linux container of the same CPU, whatever libc that has, or none.

    pack.py TARGET

What is packed is started through its own loader: `TARGET/lib/ld.so --library-path TARGET/lib TARGET/bin/python3`, with
PYTHONHOME=TARGET and PYTHONPATH=TARGET/site. Run by the build of the runner image, whose runner host lives there.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LOADER = "ld.so"
_DROPPED = "test tests idlelib ensurepip lib2to3 turtledemo tkinter dist-packages site-packages config-*".split()


def main(target: pathlib.Path) -> None:
    (target / "lib").mkdir(parents=True)
    (target / "bin").mkdir()
    interpreter = pathlib.Path(os.path.realpath(sys.executable))
    shutil.copy2(interpreter, target / "bin" / "python3")
    stdlib = sysconfig.get_path("stdlib")
    shutil.copytree(stdlib, target / "lib" / VERSION, ignore=shutil.ignore_patterns(*_DROPPED))
    shutil.copytree(sysconfig.get_path("purelib"), target / "site")
    _copy_libraries(target)


def _copy_libraries(target: pathlib.Path) -> None:
    """All that the interpreter and its extension modules are linked to, but for what a wheel brings along itself."""
    programs = [target / "bin" / "python3", *target.rglob("*.so"), *target.rglob("*.so.*")]
    pending, seen = programs, set[pathlib.Path]()
    while pending:
        found: set[pathlib.Path] = set()
        for program in pending:
            found |= _linked(program)
        pending = []
        for library in sorted(found - seen):
            seen.add(library)
            if library.is_relative_to(target):
                continue
            name = LOADER if library.name.startswith("ld-") else library.name
            shutil.copy2(os.path.realpath(library), target / "lib" / name)
            if name == LOADER:  # some libraries name it as one of theirs
                shutil.copy2(os.path.realpath(library), target / "lib" / library.name)
            pending.append(library)


def _linked(program: pathlib.Path) -> set[pathlib.Path]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {pathlib.Path(os.path.abspath(path)) for path in re.findall(r"(?:=> |^\t)(/\S+) \(0x", listed, re.MULTILINE)}


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
