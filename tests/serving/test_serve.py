"""The serve command as a process: what it refuses, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.entry import command
from tests.tasks.test_language_modeling import tiny_model
from tests.tiny import leave_run, tiny_config

for name in ("uvicorn", "starlette", "prometheus_client"):
    pytest.importorskip(name)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "bytes"
    leave_run(tiny_model(tokenizer__kind="byte", model__max_length=2000), path)
    return path


def test_a_mistake_is_one_line(workdir, tmp_path):
    done = command("serve", f"--workdir={workdir}", "--host=0.0.0.0")
    assert done.returncode == 2 and b"set TRANSFORMER_LAB_API_KEY to a key first" in done.stderr
    leave_run(tiny_config(), tmp_path / "translator")
    done = command("serve", f"--workdir={tmp_path / 'translator'}")
    assert done.returncode == 2 and b"neither writes nor embeds texts" in done.stderr


@pytest.mark.slow
def test_sigterm_ends_the_server_when_the_texts_under_way_are_done(workdir):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = ["serve", f"--workdir={workdir}", f"--port={url.rsplit(':')[-1]}", "--slots=2"]
    environment = os.environ | {"TRANSFORMER_LAB_API_KEY": "sesame"}
    process = subprocess.Popen([sys.executable, "-m", "transformer_lab", *line], env=environment)
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/health").close()
                break
            except OSError:
                time.sleep(0.2)
        body = {"prompt": "a", "max_tokens": 1900, "stream": True, "temperature": 1}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer sesame"}
        data = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", data, headers)
        with urllib.request.urlopen(request) as answer:
            answer.readline()
            process.send_signal(signal.SIGTERM)
            rows = [line for line in answer if line.strip()]
        assert rows[-1].strip() == b"data: [DONE]"
        assert json.loads(rows[-2][6:])["usage"]["completion_tokens"] > 0
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
