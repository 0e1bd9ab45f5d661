#!/usr/bin/env python3
"""Writes an OCI image, as a tarball of an OCI layout, out of directories.

Each directory becomes a layer. Nothing of the machine enters the image but the files' bytes, their names and whether
they are executable, so that equal files give an equal image, to the byte.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import stat
import tarfile

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def plain(name, kind=tarfile.REGTYPE, mode=0o644):
    """A header without owner and time."""
    header = tarfile.TarInfo(name)
    header.type, header.mode = kind, mode
    return header


def entries(root):
    """Paths below root, parents first, in an order that no file system decides."""
    for directory, names, files in os.walk(root):
        names.sort()
        links = [n for n in names if os.path.islink(os.path.join(directory, n))]
        inside = [n for n in names if n not in links]
        for name in sorted(files + links + inside):
            yield os.path.relpath(os.path.join(directory, name), root)


def layer(root):
    """A directory as a tarball."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in entries(root):
            path = os.path.join(root, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                header = plain(name, tarfile.SYMTYPE, 0o777)
                header.linkname = os.readlink(path)
                archive.addfile(header)
            elif stat.S_ISDIR(status.st_mode):
                archive.addfile(plain(name, tarfile.DIRTYPE, 0o755))
            else:
                header = plain(name, mode=0o755 if status.st_mode & 0o100 else 0o644)
                header.size = status.st_size
                with open(path, "rb") as file:
                    archive.addfile(header, file)
    return buffer.getvalue()


class Blobs:
    """Content by its digest."""

    def __init__(self):
        self.all = {}

    def add(self, media_type, content):
        digest = hashlib.sha256(content).hexdigest()
        self.all[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, media_type, value):
        return self.add(media_type, encode(value))


def encode(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def index(arguments):
    """All blobs, and the index that leads to them."""
    blobs = Blobs()
    tarballs = [layer(root) for root in arguments.layers]
    labels = dict(pair.split("=", 1) for pair in arguments.label)
    config = {
        "architecture": arguments.architecture,
        "os": "linux",
        # The beginning of time: a build date would make each build another image.
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Entrypoint": [arguments.entrypoint],
            "Labels": labels,
            "User": arguments.user,
            "WorkingDir": "/",
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(t).hexdigest()}" for t in tarballs],
        },
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blobs.add_json(CONFIG, config),
        "layers": [blobs.add(LAYER, gzip.compress(t, 6, mtime=0)) for t in tarballs],
        "annotations": labels,
    }
    entry = blobs.add_json(MANIFEST, manifest)
    entry["platform"] = {"architecture": arguments.architecture, "os": "linux"}
    # containerd takes the whole name from its own annotation, other readers take the tag.
    entry["annotations"] = {
        "io.containerd.image.name": arguments.name,
        "org.opencontainers.image.ref.name": arguments.name.rsplit(":", 1)[1],
    }
    return blobs.all, {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}


def write(path, blobs, top):
    """The layout as a tarball, put in place at once."""
    files = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"}), "index.json": encode(top)}
    files.update((f"blobs/sha256/{digest}", blobs[digest]) for digest in sorted(blobs))
    with tarfile.open(path + ".new", "w", format=tarfile.GNU_FORMAT) as archive:
        for directory in ("blobs", "blobs/sha256"):
            archive.addfile(plain(directory, tarfile.DIRTYPE, 0o755))
        for name, content in files.items():
            header = plain(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="with a tag: localhost/program:dev")
    parser.add_argument("--out", required=True)
    parser.add_argument("--entrypoint", required=True)
    parser.add_argument("--architecture", required=True, help="as Go names it: amd64, arm64")
    parser.add_argument("--user", default="65532:65532")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("layers", nargs="+", metavar="DIRECTORY")
    arguments = parser.parse_args()
    write(arguments.out, *index(arguments))


if __name__ == "__main__":
    main()
