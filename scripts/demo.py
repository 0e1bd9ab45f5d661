"""The story that scripts/demo tells. usage: demo.py ASSENT"""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
POLICY = REPOSITORY / "policies/no-privileged"
# Long enough for a busy machine to compile the module; a step that works takes a second or two.
PATIENCE_SECONDS = 120


def say(text):
    print(text, flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Demo:
    def __init__(self, assent, directory):
        self.policies = directory / "policies"
        self.policies.mkdir()
        self.log = directory / "assent.log"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.command = [assent, "up", "--policies", str(self.policies), "--replicas", "3",
                        "--state", str(directory / "state"), "--discovery", f"127.0.0.1:{free_port()}",
                        "--http", self.url.removeprefix("http://")]
        self.process = None

    def start(self):
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self):
        self.process.terminate()
        status = self.process.wait(timeout=60)
        if status != 0:
            self.fail(f"assent ended with exit status {status}")

    def fail(self, message):
        say(f"\nThe demo failed: {message}\nWhat assent said:")
        say(self.log.read_text(errors="replace")[-4000:])
        sys.exit(1)

    def apply(self, manifest):
        # Renamed into place: a watcher never sees half a file.
        scratch = self.policies / ".manifest"
        scratch.write_text(manifest)
        scratch.rename(self.policies / "no-privileged.yaml")

    def call(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def policy(self):
        found = [policy for policy in self.call("/status") if policy["metadata"]["name"] == "no-privileged"]
        return found[0] if found else None

    def wait(self, what, holds):
        """Waits until the policy's status satisfies `holds`, and returns it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        policy = None
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.fail(f"assent ended with exit status {self.process.returncode}")
            try:
                policy = self.policy()
            except OSError:
                pass  # Not listening yet.
            if policy is not None and holds(policy):
                return policy
            time.sleep(0.2)
        self.fail(f"waited {PATIENCE_SECONDS} s for: {what}. Last seen: {json.dumps(policy)}")

    def admit(self, name, allowed):
        case = json.loads((POLICY / f"tests/{name}.json").read_text())
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": case["request"]}
        response = self.call("/admit", review)["response"]
        message = response.get("status", {}).get("message", "")
        say(f"   {'allowed' if response['allowed'] else 'denied '}  {name}  {message}")
        if response["allowed"] != allowed:
            self.fail(f"{name} should be {'allowed' if allowed else 'denied'}: {json.dumps(response)}")


def condition(policy, name):
    conditions = policy.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == name), {})


def enforced(generation):
    def holds(policy):
        found = condition(policy, "Enforced")
        return (policy["metadata"]["generation"] == generation and found.get("status") == "True"
                and found.get("observedGeneration") == generation)
    return holds


def refused(generation):
    def holds(policy):
        found = condition(policy, "Accepted")
        return found.get("status") == "False" and found.get("observedGeneration") == generation
    return holds


def rows(policy):
    status = policy["status"]
    rollout = status.get("rollout", {})
    say(f"   active generation {status['active']['generation']}, on {rollout.get('applied')} of {rollout.get('desired')} replicas")


def manifest(exempt_images):
    return f"""apiVersion: policies.assent.dev/v1alpha1
kind: ClusterAdmissionPolicy
metadata:
  name: no-privileged
spec:
  module: file://policy.wasm
  settings:
    exemptImages: {json.dumps(exempt_images)}
  rules:
    - apiGroups: ["", apps]
      apiVersions: [v1]
      resources: [pods, daemonsets]
      operations: [CREATE, UPDATE]
"""


def tell(demo):
    shutil.copy(POLICY / "policy.wasm", demo.policies / "policy.wasm")
    say("1. A control plane, three evaluators and the policy no-privileged.")
    demo.apply(manifest([]))
    demo.start()
    rows(demo.wait("the policy to be enforced", enforced(1)))
    demo.admit("pod-plain", allowed=True)
    demo.admit("pod-privileged", allowed=False)
    demo.admit("daemonset-exempt-image", allowed=False)

    say("2. Its settings change: images of kube-proxy are exempt. Nothing restarts.")
    demo.apply(manifest(["registry.k8s.io/kube-proxy:*"]))
    rows(demo.wait("generation 2 to be enforced", enforced(2)))
    demo.admit("daemonset-exempt-image", allowed=True)
    demo.admit("pod-privileged", allowed=False)

    say("3. A mistake: every image exempt. The policy itself refuses the settings; generation 2 goes on protecting.")
    demo.apply(manifest(["*"]))
    policy = demo.wait("generation 3 to be refused", refused(3))
    say(f"   refused: {condition(policy, 'Accepted').get('message')}")
    rows(policy)
    demo.admit("pod-privileged", allowed=False)


def main(assent):
    with tempfile.TemporaryDirectory(prefix="assent-demo-") as directory:
        demo = Demo(assent, pathlib.Path(directory))
        try:
            tell(demo)
            demo.stop()
        finally:
            if demo.process is not None and demo.process.poll() is None:
                demo.process.kill()
                demo.process.wait()
    say("Done.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
