"""A bucket in memory, for fsspec (which `etils.epath` uses) and for tensorstore (which Orbax uses).

As in a store of objects no directory is kept, and nothing is appended to or renamed.
"""

import contextlib
import http.server
import json
import sys
import threading
import urllib.parse
from collections.abc import Iterator

import fsspec
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem


class Bucket(MemoryFileSystem):
    """The objects of all buckets by "/BUCKET/NAME", in one dictionary."""

    protocol = ("gs", "gcs", "s3")
    store = {}
    pseudo_dirs = [""]

    @classmethod
    def about(cls, key: str) -> dict[str, str]:
        """What Google's storage says of an object; a number tells each writing of it."""
        found, name = cls.store[key], key.split("/", 2)[2]
        generation = str(int(found.created.timestamp() * 1e6))
        return {"name": name, "size": str(len(found.getvalue())), "generation": generation}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).partition("://")[2] or str(path))

    def mkdir(self, path, create_parents=True, **kwargs):
        """Nothing: a directory is there once it holds something."""

    def makedirs(self, path, exist_ok=False):
        """Nothing."""

    def mv(self, *args, **kwargs):
        raise OSError("an object cannot be renamed")

    def _open(self, path, mode="rb", **kwargs):
        if mode not in ("rb", "wb"):
            raise OSError(f"an object cannot be opened in the mode {mode}")
        return super()._open(path, mode, **kwargs)


class Handler(http.server.BaseHTTPRequestHandler):
    """What tensorstore asks of Google's storage, its JSON interface."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Nothing."""

    def answer(self, code: int, body: bytes = b"", *more: tuple[str, str]) -> None:
        self.send_response(code)
        for name, value in (*more, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def asked(self) -> tuple[str, dict[str, str]]:
        """The object's key, that of the bucket for a list, and the query."""
        url = urllib.parse.urlsplit(self.path)
        bucket, _, name = url.path.partition("/b/")[2].partition("/o")
        query = dict(urllib.parse.parse_qsl(url.query))
        return f"/{bucket}/{query.get('name') or urllib.parse.unquote(name[1:])}", query

    def do_GET(self):
        key, query = self.asked()
        if query.get("alt") == "media":
            if key not in Bucket.store:
                return self.answer(404)
            body, found = Bucket.store[key].getvalue(), self.headers.get("Range")
            mark = ("x-goog-generation", Bucket.about(key)["generation"])
            if not found:
                return self.answer(200, body, mark)
            first, last = found.removeprefix("bytes=").split("-")
            last = min(int(last or len(body)), len(body) - 1)
            where = ("Content-Range", f"bytes {first}-{last}/{len(body)}")
            return self.answer(206, body[int(first) : last + 1], mark, where)
        first, end = query.get("startOffset", ""), query.get("endOffset") or chr(0x10FFFF)
        items = [Bucket.about(k) for k in sorted(Bucket.store) if key + first <= k < key + end]
        return self.answer(200, json.dumps({"items": items}).encode())

    def do_POST(self):
        key, _ = self.asked()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Bucket().pipe_file(key, body)
        self.answer(200, json.dumps(Bucket.about(key)).encode())

    def do_DELETE(self):
        self.answer(204 if Bucket.store.pop(self.asked()[0], None) else 404)


@contextlib.contextmanager
def buckets(monkeypatch) -> Iterator[dict]:
    """Inside, gs:// and s3:// are empty buckets in memory; yields the objects that are in them."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("EPATH_USE_TF", "false")
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
    monkeypatch.setattr(fsspec.config, "conf", {})
    for scheme in ("gcs", "gs", "s3"):
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, scheme, Bucket)
    backend.fsspec_backend._get_filesystem.cache_clear()
    Bucket.store.clear()
    try:
        yield Bucket.store
    finally:
        backend.fsspec_backend._get_filesystem.cache_clear()
        server.shutdown()
        server.server_close()
        thread.join()
