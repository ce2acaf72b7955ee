"""Kernels for GPUs: compiled at run time by NVRTC, or by nvcc where it is, and kept in a cache of cubins.

Neither needs a GPU or a driver. The device headers are part of the package (`device_headers`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from busbw.execution.cuda_driver import CudaUnavailableError

__all__ = [
    "CompilationError",
    "Compiler",
    "CubinCache",
    "Nvcc",
    "Nvrtc",
    "cache_folder",
    "device_headers",
    "find_compiler",
]

OPTIONS = ("-std=c++20", "-lineinfo")
"""-lineinfo: compute-sanitizer and profilers name the line; the code is the same."""
CACHE_BYTES = 64 << 20
"""A cubin of one kernel takes 10 to 100 KB (measured with NVRTC 13.5), so this is a thousand. A guess at what nobody minds."""
_NVCC_S = 600.0


class CompilationError(RuntimeError):
    """The compiler refused a source; the message has its words."""


class Compiler(Protocol):
    """What makes machine code of CUDA C++."""

    name: str
    """With its version: code of another version is another entry of the cache."""
    version: tuple[int, int]

    def cubin(self, source: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
        """Machine code of source, which may include the device headers."""


@lru_cache(maxsize=1)
def device_headers() -> Path:
    """The folder to give as -I: `busbw/device/*.hpp` lie below it. In the wheel, or beside an editable installation."""
    package = Path(__file__).parents[1]
    for folder in (package / "include", package.parents[1] / "cpp" / "include"):
        if (folder / "busbw" / "device" / "target.hpp").is_file():
            return folder
    raise CudaUnavailableError(
        f"The device headers are not beside the package ({package / 'include'}): the installation is incomplete, install busbw again."
    )


@lru_cache(maxsize=1)
def headers_hash() -> str:
    """Of names and contents of all device headers."""
    digest = hashlib.sha256()
    folder = device_headers()
    for path in sorted([*folder.glob("busbw/device/**/*.hpp"), folder / "busbw" / "schedule" / "plan_columns.hpp"]):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


class Nvrtc:
    """NVIDIA's run-time compiler, of the package nvidia-cuda-nvrtc or of an installed toolkit."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import nvrtc  # noqa: PLC0415  (an extra)
        except ImportError as error:
            raise CudaUnavailableError(
                f"cuda-bindings can't be imported ({error}): pip install 'busbw[cuda]'."
            ) from None
        self._nvrtc = nvrtc
        try:
            major, minor = self._call("nvrtcVersion")
        except (RuntimeError, OSError) as error:
            raise CudaUnavailableError(
                "NVRTC's library can't be loaded: pip install nvidia-cuda-nvrtc. "
                f"The loader said: {(str(error) or repr(error)).splitlines()[0]}"
            ) from None
        self.version = (int(major), int(minor))
        self.name = f"NVRTC {major}.{minor}"

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *given = getattr(self._nvrtc, name)(*arguments)
        if int(status):
            raise CompilationError(f"{name}: {status!s}")
        return given[0] if len(given) == 1 else given

    def architectures(self) -> list[int]:
        """Those it makes code for, such as 90."""
        return [int(one) for one in self._call("nvrtcGetSupportedArchs")]

    def cubin(self, source: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
        """Machine code of source."""
        known = self.architectures()
        if architecture not in known:
            raise CompilationError(
                f"{self.name} makes no code for sm_{architecture}; it knows {', '.join(f'sm_{one}' for one in known)}. "
                "Install another version of nvidia-cuda-nvrtc: older ones know older GPUs."
            )
        program = self._call("nvrtcCreateProgram", source.encode(), b"busbw.cu", 0, [], [])
        try:
            wanted = [f"--gpu-architecture=sm_{architecture}", f"-I{device_headers()}", *options]
            encoded = [one.encode() for one in wanted]
            status = int(self._nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0])
            if status:
                log = b" " * int(self._call("nvrtcGetProgramLogSize", program))
                self._call("nvrtcGetProgramLog", program, log)
                words = _first_lines(log.decode(errors="replace"))
                raise CompilationError(f"{self.name} for sm_{architecture}: {words}")
            image = b" " * int(self._call("nvrtcGetCUBINSize", program))
            self._call("nvrtcGetCUBIN", program, image)
            return image
        finally:
            self._nvrtc.nvrtcDestroyProgram(program)


class Nvcc:
    """The toolkit's compiler: where it is, NVRTC is not needed, and one file can hold code for several architectures."""

    def __init__(self, path: str | None = None) -> None:
        found = path or shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        if found is None:
            raise CudaUnavailableError("There is no nvcc on PATH or in /usr/local/cuda/bin: install the CUDA toolkit.")
        self.path = found
        told = ran([found, "--version"])
        words = told.split("release ")[-1].split(",")[0].split(".")
        if len(words) != 2 or not all(word.isdigit() for word in words):
            raise CudaUnavailableError(f"{found} --version names no release: {told.strip()[-200:]}")
        self.version = (int(words[0]), int(words[1]))
        self.name = f"nvcc {words[0]}.{words[1]}"

    def cubin(self, source: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
        """Machine code of source."""
        return self.compiled(source, ["-cubin", f"-arch=sm_{architecture}", *options])[0]

    def fatbin(self, source: str, architectures: Sequence[int], options: Sequence[str] = OPTIONS) -> bytes:
        """One image for several architectures, and PTX of the last for what comes after it."""
        codes = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in architectures]
        last = max(architectures)
        codes.append(f"-gencode=arch=compute_{last},code=compute_{last}")
        return self.compiled(source, ["-fatbin", *codes, *options])[0]

    def compiled(self, source: str, options: Sequence[str]) -> tuple[bytes, str]:
        """What nvcc writes with these options, and what it says."""
        with tempfile.TemporaryDirectory(prefix="busbw-nvcc-") as folder:
            text, image = Path(folder) / "busbw.cu", Path(folder) / "busbw.out"
            text.write_text(source, encoding="utf-8")
            said = ran([self.path, f"-I{device_headers()}", *options, "-o", str(image), str(text)])
            return image.read_bytes(), said


def find_compiler() -> Compiler:
    """NVRTC, or nvcc where NVRTC is not installed. Raises CudaUnavailableError with what both lack."""
    missing = []
    for kind in (Nvrtc, Nvcc):
        try:
            return kind()
        except CudaUnavailableError as error:
            missing.append(str(error))
    raise CudaUnavailableError("No compiler for CUDA kernels was found. " + " ".join(missing))


def cache_folder() -> Path:
    """Where cubins are kept: $XDG_CACHE_HOME/busbw/cubin, or ~/.cache/busbw/cubin."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "busbw" / "cubin"


class CubinCache:
    """Machine code by what it was made of: source, headers, compiler and its version, architecture, options.

    A file is its contents' SHA-256 and the contents, written under a temporary name and renamed, so that any number of processes may share
    the folder. What is damaged is made again. Over most_bytes the files not used for longest go. A folder that can't be written is no cache.
    """

    def __init__(self, folder: Path | None = None, most_bytes: int = CACHE_BYTES) -> None:
        self.folder = cache_folder() if folder is None else folder
        self.most_bytes = most_bytes

    def cubin(self, compiler: Compiler, source: str, architecture: int, options: Sequence[str] = OPTIONS) -> bytes:
        """From the folder, or made by the compiler and put there."""
        parts = (compiler.name, f"sm_{architecture}", *options, headers_hash(), source)
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        path = self.folder / f"{key}.cubin"
        kept = _read(path)
        if kept is not None:
            return kept
        made = compiler.cubin(source, architecture, options)
        try:
            self._keep(path, made)
        except OSError:
            return made
        return made

    def _keep(self, path: Path, image: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, hidden = tempfile.mkstemp(dir=self.folder, suffix=".new")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(image).digest() + image)
            Path(hidden).replace(path)
        except OSError:
            Path(hidden).unlink(missing_ok=True)
            raise
        self._bound()

    def _bound(self) -> None:
        """Removes what was used least recently, until the rest fits; leftovers of writers that were killed count too."""
        files = []
        for path in self.folder.iterdir():
            if path.suffix in (".cubin", ".new"):
                try:
                    found = path.stat()
                except FileNotFoundError:  # another process was faster
                    continue
                files.append((found.st_mtime_ns, found.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.most_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


_DIGEST_BYTES = hashlib.sha256().digest_size


def _read(path: Path) -> bytes | None:
    """The contents of a file of the cache; None if there is none, or it is damaged. Marks it as used."""
    try:
        data = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    image = data[_DIGEST_BYTES:]
    return image if image and hashlib.sha256(image).digest() == data[:_DIGEST_BYTES] else None


def ran(command: Sequence[str], timeout_s: float = _NVCC_S) -> str:
    """What a command prints. Raises CompilationError with its first words if it fails."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilationError(f"{command[0]}: {error}") from None
    if done.returncode:
        words = _first_lines(done.stderr or done.stdout)
        raise CompilationError(f"{command[0]} ended with status {done.returncode}: {words}")
    return done.stdout + done.stderr


def _first_lines(text: str, most: int = 12) -> str:
    lines = text.strip("\0 \n").splitlines()
    return "\n".join(lines[:most]) + (f"\n... {len(lines) - most} more lines" if len(lines) > most else "")
