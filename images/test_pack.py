#!/usr/bin/env python3
"""Tests of pack.py: what is in an image, and that equal files give equal bytes."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest

PACK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pack.py")


def make_tree(root, names):
    """A program, a file and a link, made in the order of names."""
    for name in names:
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if name == "lib/link":
            os.symlink("../usr/bin/program", path)
            continue
        with open(path, "w", encoding="utf-8") as file:
            file.write(name)
        os.chmod(path, 0o700 if name.endswith("program") else 0o600)


NAMES = ["usr/bin/program", "etc/passwd", "lib/link"]


class PackTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)

    def pack(self, names, title="x"):
        root = tempfile.mkdtemp(dir=self.scratch.name)
        make_tree(root, names)
        out = os.path.join(self.scratch.name, f"{title}.tar")
        command = [sys.executable, PACK, "--name", "localhost/program:dev", "--out", out]
        command += ["--entrypoint", "/usr/bin/program", "--architecture", "amd64", "--label", "a=b", root]
        subprocess.run(command, check=True)
        with open(out, "rb") as file:
            return file.read()

    def test_the_order_of_making_and_the_time_leave_no_trace(self):
        first = self.pack(NAMES)
        os.environ["TZ"] = "Asia/Tokyo"
        self.assertEqual(first, self.pack(list(reversed(NAMES)), "y"))

    def test_digests_lead_from_the_index_to_the_files(self):
        with tarfile.open(fileobj=io.BytesIO(self.pack(NAMES))) as layout:
            files = {m.name: layout.extractfile(m).read() for m in layout if m.isfile()}
        self.assertEqual(json.loads(files["oci-layout"]), {"imageLayoutVersion": "1.0.0"})

        def blob(descriptor):
            content = files["blobs/" + descriptor["digest"].replace(":", "/")]
            self.assertEqual(descriptor["digest"], "sha256:" + hashlib.sha256(content).hexdigest())
            self.assertEqual(descriptor["size"], len(content))
            return content

        (entry,) = json.loads(files["index.json"])["manifests"]
        self.assertEqual(entry["annotations"]["io.containerd.image.name"], "localhost/program:dev")
        manifest = json.loads(blob(entry))
        config = json.loads(blob(manifest["config"]))
        self.assertEqual(config["config"]["User"], "65532:65532")
        self.assertEqual(config["config"]["Entrypoint"], ["/usr/bin/program"])
        (layer,) = [gzip.decompress(blob(d)) for d in manifest["layers"]]
        self.assertEqual(config["rootfs"]["diff_ids"], ["sha256:" + hashlib.sha256(layer).hexdigest()])
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            found = {m.name: (m.mode, m.uid, m.gid, m.mtime, m.linkname) for m in archive}
        self.assertEqual(found["usr/bin/program"], (0o755, 0, 0, 0, ""))
        self.assertEqual(found["etc/passwd"], (0o644, 0, 0, 0, ""))
        self.assertEqual(found["lib/link"], (0o777, 0, 0, 0, "../usr/bin/program"))
        self.assertEqual(sorted(found), sorted(NAMES + ["usr", "usr/bin", "etc", "lib"]))


if __name__ == "__main__":
    unittest.main()
