"""Push to the hub, with the hub's own client, against a stand-in that speaks its protocol."""

import base64
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest

from bertflow.export.targets import write_export

PUSH = """
import sys
from pathlib import Path
from bertflow.export.card import push_export
print(push_export(Path(sys.argv[1]), sys.argv[2]))
"""


class HubStandIn(BaseHTTPRequestHandler):
    """What `HfApi.create_repo` and `HfApi.upload_folder` talk to: repository, upload modes, large files, one commit."""

    files: dict[str, bytes]
    created: list[dict]
    stored: dict[str, bytes]
    refuse = False

    def do_POST(self):
        path, body = urlsplit(self.path).path, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        here = f"http://127.0.0.1:{self.server.server_port}"
        if self.refuse:
            self._answer({"error": "no right to write"}, 403)
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self.created.append(json.loads(body))
            self._answer({"url": f"{here}/me/mine", "name": "me/mine"})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = {f["path"]: "lfs" if f["path"].endswith(".safetensors") else "regular" for f in files}
            self._answer({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})
        elif path.endswith("/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            objects = [
                {**one, "actions": {"upload": {"href": f"{here}/store/{one['oid']}", "header": {}}}} for one in asked
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif path.endswith("/commit/main"):
            for line in body.decode().splitlines():
                self._take(json.loads(line))
            self._answer({"success": True, "commitOid": "1" * 40, "commitUrl": f"{here}/me/mine/commit/{'1' * 40}"})
        else:
            self._answer({"error": f"not known: {path}"}, 404)

    def do_PUT(self):
        oid = self.path.rpartition("/")[2]
        self.stored[oid] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({})

    def do_GET(self):
        self._answer({"sha": "0" * 40, "id": "me/mine", "siblings": []})

    def _take(self, line):
        value = line["value"]
        if line["key"] == "file":
            self.files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            self.files[value["path"]] = self.stored[value["oid"]]

    def _answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    handler = type("Handler", (HubStandIn,), {"files": {}, "created": [], "stored": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


def push(folder, name, endpoint, home):
    """In a process of its own: the hub's client reads its endpoint when it is imported."""
    hub = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_stand_in", "HF_HOME": str(home)}
    environment = {**os.environ, **hub, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", PUSH, str(folder), name]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_every_file_arrives_as_it_is(hub, tiny_system, tmp_path):
    handler, endpoint = hub
    folder = write_export(tiny_system("mean", "whitening"), tmp_path / "out", "sentence-transformers").folder
    done = push(folder, "me/mine", endpoint, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{endpoint}/me/mine/commit/{'1' * 40}"
    assert (handler.created[0]["name"], handler.created[0]["organization"]) == ("mine", "me")
    written = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert handler.files == written


@pytest.mark.slow
def test_a_hub_that_refuses_is_quoted(hub, tiny_system, tmp_path):
    handler, endpoint = hub
    handler.refuse = True
    folder = write_export(tiny_system("mean"), tmp_path / "out", "sentence-transformers").folder
    done = push(folder, "me/mine", endpoint, tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"bertflow.errors.UsageError: 'me/mine' could not be pushed to {endpoint}: ")
    assert f"The export is complete in {folder}" in last
