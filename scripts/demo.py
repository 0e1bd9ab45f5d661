"""The demonstration of scripts/demo. usage: demo.py ASSENT"""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
POLICY = REPOSITORY / "policies/no-privileged"
REPLICAS = 3
# Long enough for a busy machine to compile the module; a step that works takes a second or two.
PATIENCE_SECONDS = 60


def say(text):
    print(text, flush=True)


def free_ports(count):
    """Unused ports. All sockets are open at the same time, so that no two are equal."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Demo:
    def __init__(self, assent, directory):
        self.policies = directory / "policies"
        self.policies.mkdir()
        self.log = directory / "assent.log"
        discovery, http = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        self.command = [assent, "up", "--policies", str(self.policies), "--replicas", str(REPLICAS),
                        "--state", str(directory / "state"), "--discovery", f"127.0.0.1:{discovery}",
                        "--http", f"127.0.0.1:{http}"]
        self.process = None
        self.follower = None

    def start(self):
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                            text=True, errors="replace")
        self.follower = threading.Thread(target=self.follow, daemon=True)
        self.follower.start()

    def follow(self):
        """Shows the output of `assent up`: a line for each change of a policy."""
        for line in self.process.stdout:
            say(f"      {line.rstrip()}")

    def stop(self):
        self.process.terminate()
        try:
            status = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.fail("assent did not end within 30 s after SIGTERM")
        self.follower.join(timeout=10)
        if status != 0:
            self.fail(f"assent ended with exit status {status}")

    def fail(self, message):
        say(f"\nThe demo failed: {message}\nLog of assent:")
        say(self.log.read_text(errors="replace")[-4000:])
        sys.exit(1)

    def apply(self, exempt_images):
        # Renamed into place, so that a watcher never sees a partial file.
        scratch = self.policies / ".manifest"
        scratch.write_text(manifest(exempt_images))
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
                # Lets the output of assent appear before the next step.
                time.sleep(0.3)
                return policy
            time.sleep(0.1)
        self.fail(f"waited {PATIENCE_SECONDS} s for: {what}. Last seen: {json.dumps(policy)}")

    def admit(self, name, allowed):
        case = json.loads((POLICY / f"tests/{name}.json").read_text())
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": case["request"]}
        try:
            response = self.call("/admit", review)["response"]
        except OSError as error:
            self.fail(f"POST /admit: {error}")
        message = response.get("status", {}).get("message", "")
        say(f"   POST /admit {name}: {'allowed' if response['allowed'] else 'DENIED: ' + message}")
        if response["allowed"] != allowed:
            self.fail(f"{name} should be {'allowed' if allowed else 'denied'}: {json.dumps(response)}")

    def enforced(self, generation):
        """Waits until every evaluator serves the generation and requests are sent to it."""
        def holds(policy):
            status = policy["status"]
            found = condition(policy, "Enforced")
            return (found.get("status") == "True" and found.get("observedGeneration") == generation
                    and status["active"]["generation"] == generation)

        status = self.wait(f"generation {generation} to be enforced", holds)["status"]
        applied, desired = status["rollout"]["applied"], status["rollout"]["desired"]
        say(f"   generation {generation} was acknowledged by {applied} of {desired} evaluators and is active")
        if (applied, desired) != (REPLICAS, REPLICAS):
            self.fail(f"{REPLICAS} evaluators should serve it: {json.dumps(status)}")

    def refused(self, active):
        """Waits until an edit is refused while the generation `active` stays active."""
        def holds(policy):
            return condition(policy, "Accepted").get("status") == "False"

        policy = self.wait("the edit to be refused", holds)
        say(f"   refused: {condition(policy, 'Accepted').get('message')}")
        status = policy["status"]
        if status.get("active", {}).get("generation") != active or condition(policy, "Ready").get("status") != "True":
            self.fail(f"generation {active} should stay active: {json.dumps(status)}")
        say(f"   generation {active} stays active")


def condition(policy, name):
    conditions = policy.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == name), {})


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
      resources: [pods, deployments]
      operations: [CREATE, UPDATE]
"""


def play(demo):
    shutil.copy(POLICY / "policy.wasm", demo.policies / "policy.wasm")
    say(f"1. A control plane, {REPLICAS} evaluators and the policy no-privileged.")
    demo.apply([])
    demo.start()
    demo.enforced(1)
    demo.admit("pod-plain", allowed=True)
    demo.admit("pod-privileged", allowed=False)

    say("\n2. The manifest is edited: busybox images may run privileged. Nothing restarts.")
    demo.apply(["busybox:*"])
    demo.enforced(2)
    demo.admit("pod-privileged", allowed=True)
    demo.admit("deployment-privileged", allowed=False)

    say("\n3. A mistake: every image is exempt. The policy itself rejects these settings.")
    demo.apply(["*"])
    demo.refused(active=2)
    demo.admit("pod-privileged", allowed=True)
    demo.admit("deployment-privileged", allowed=False)


def main(assent):
    with tempfile.TemporaryDirectory(prefix="assent-demo-") as directory:
        demo = Demo(assent, pathlib.Path(directory))
        try:
            play(demo)
            demo.stop()
        finally:
            if demo.process is not None and demo.process.poll() is None:
                demo.process.kill()
                demo.process.wait()
    say("\nDone: a policy was enforced, changed without a restart, and protected from a bad edit.")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
