"""A server that speaks as much of the Hugging Face Hub's API as its client needs to write and read data sets.

Every file is a regular one, so nothing goes through LFS or Xet. Each commit is a revision.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml
from flask import Flask, Response, jsonify, request
from werkzeug.serving import WSGIRequestHandler

from tests.servers import serving

Files = dict[str, bytes]


class Silent(WSGIRequestHandler):
    def log_request(self, *arguments: Any) -> None: ...


@dataclass
class Hub:
    """Data sets by name, each with its commits."""

    url: str = ""
    commits: dict[str, list[Files]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_TOKEN": "hf_user", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}

    def files(self, name: str, revision: str = "main") -> Files:
        """Of a revision: `main`, or the number of a commit in forty digits."""
        commits = self.commits[name]
        return commits[-1 if revision == "main" else int(revision, 16)]

    def sha(self, name: str) -> str:
        return f"{len(self.commits[name]) - 1:040x}"


def oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()
    with serving(app_of(hub), Silent) as hub.url:
        yield hub


def app_of(hub: Hub) -> Flask:
    app = Flask(__name__)

    def missing(what: str) -> Response:
        return Response(status=404, headers={"X-Error-Code": what, "X-Error-Message": what})

    @app.before_request
    def check() -> Response | None:
        name = f"{request.view_args['user']}/{request.view_args['name']}" if request.view_args else None
        if request.headers.get("authorization") != "Bearer hf_user":
            return Response(status=401)
        if name is not None and name not in hub.commits:
            return missing("RepoNotFound")
        revision = (request.view_args or {}).get("revision", "main")
        return None if revision == "main" or re.fullmatch("[0-9a-f]{40}", revision) else missing("RevisionNotFound")

    @app.get("/api/whoami-v2")
    def whoami() -> Response:
        return jsonify(name="user", type="user", orgs=[], auth={"accessToken": {"role": "write"}})

    @app.post("/api/validate-yaml")
    def validate_yaml() -> Response:
        _, text, _ = request.get_json()["content"].split("---\n", 2)
        yaml.safe_load(text)
        return jsonify(errors=[], warnings=[])

    @app.post("/api/repos/create")
    def create() -> Any:
        asked = request.get_json()
        name = f"{asked.get('organization') or 'user'}/{asked['name']}"
        url = f"{hub.url}/datasets/{name}"
        if name in hub.commits:
            return jsonify(url=url, error="exists"), 409
        hub.commits[name] = [{".gitattributes": b"*.arrow filter=lfs\n"}]
        if asked.get("private") or asked.get("visibility") == "private":
            hub.private.add(name)
        return jsonify(url=url, name=name)

    @app.get("/api/datasets/<user>/<name>")
    @app.get("/api/datasets/<user>/<name>/revision/<revision>")
    def info(user: str, name: str, revision: str = "main") -> Response:
        repo = f"{user}/{name}"
        siblings = [{"rfilename": path} for path in hub.files(repo, revision)]
        sha = hub.sha(repo) if revision == "main" else revision
        return jsonify(id=repo, sha=sha, siblings=siblings, private=repo in hub.private, tags=[])

    def entry(path: str, content: bytes) -> dict[str, Any]:
        return {"type": "file", "path": path, "size": len(content), "oid": oid(content)}

    @app.get("/api/datasets/<user>/<name>/tree/<revision>", defaults={"folder": ""})
    @app.get("/api/datasets/<user>/<name>/tree/<revision>/", defaults={"folder": ""})
    @app.get("/api/datasets/<user>/<name>/tree/<revision>/<path:folder>")
    def tree(user: str, name: str, revision: str, folder: str) -> Any:
        start = f"{folder}/" if folder else ""
        found = {path: each for path, each in hub.files(f"{user}/{name}", revision).items() if path.startswith(start)}
        if folder and not found:
            return missing("EntryNotFound")
        folders = {path.rpartition("/")[0] for path in found} - {"", folder}
        folders |= {parent.rpartition("/")[0] for parent in folders} - {"", folder}
        entries = [entry(path, each) for path, each in found.items()]
        entries += [{"type": "directory", "path": path, "oid": oid(path.encode()), "size": 0} for path in folders]
        if request.args.get("recursive", "False").lower() != "true":
            entries = [each for each in entries if "/" not in each["path"].removeprefix(start)]
        return jsonify(entries)

    @app.post("/api/datasets/<user>/<name>/paths-info/<revision>")
    def paths_info(user: str, name: str, revision: str) -> Response:
        asked = request.form.getlist("paths") if request.form else request.get_json()["paths"]
        files = hub.files(f"{user}/{name}", revision)
        found = [entry(path, files[path]) for path in asked if path in files]
        folders = [path for path in asked if any(each.startswith(f"{path}/") for each in files)]
        found += [{"type": "directory", "path": path, "oid": oid(path.encode()), "size": 0} for path in folders]
        return jsonify(found)

    @app.post("/api/datasets/<user>/<name>/preupload/<revision>")
    def preupload(user: str, name: str, revision: str) -> Response:
        files = hub.files(f"{user}/{name}", revision)
        answers = [
            {
                "path": file["path"],
                "uploadMode": "regular",
                "shouldIgnore": False,
                "oid": oid(files[file["path"]]) if file["path"] in files else None,
            }
            for file in request.get_json()["files"]
        ]
        return jsonify(files=answers)

    @app.post("/api/datasets/<user>/<name>/commit/<revision>")
    def commit(user: str, name: str, revision: str) -> Response:
        repo = f"{user}/{name}"
        files = dict(hub.files(repo, revision))
        for line in request.get_data().splitlines():
            asked = json.loads(line)
            value = asked["value"]
            if asked["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif asked["key"] == "deletedFile":
                del files[value["path"]]
        hub.commits[repo].append(files)
        return jsonify(commitOid=hub.sha(repo), commitUrl=f"{hub.url}/datasets/{repo}/commit/{hub.sha(repo)}")

    @app.get("/datasets/<user>/<name>/resolve/<revision>/<path:path>")
    def resolve(user: str, name: str, revision: str, path: str) -> Response:
        repo = f"{user}/{name}"
        files = hub.files(repo, revision)
        if path not in files:
            return missing("EntryNotFound")
        response = Response(files[path], mimetype="application/octet-stream")
        sha = hub.sha(repo) if revision == "main" else revision
        response.headers |= {"X-Repo-Commit": sha, "ETag": f'"{oid(files[path])}"', "Accept-Ranges": "bytes"}
        return response.make_conditional(request, accept_ranges=True, complete_length=len(files[path]))

    return app
