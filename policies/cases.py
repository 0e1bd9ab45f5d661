#!/usr/bin/env python3
"""Checks the form of every case, and asks OPA for its verdict on those of the Rego policies.

usage: cases.py OPA

OPA evaluates the sources, not the modules: it is a second opinion, independent of the evaluator.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
FORMS = {"*/tests/*.json": ({"name", "settings", "request", "expect"}, "allowed", {"message_contains", "patched"}),
         "*/tests/settings/*.json": ({"name", "settings", "expect"}, "valid", {"message_contains"})}

# What policies that read other objects find: the objects, and whether access reviews are answered with yes.
CONTEXT = {"objects", "allowAllAccess"}


def form_error(case, fields, verdict, optional):
    if set(case) - CONTEXT != fields:
        return f"has the fields {sorted(case)}, not {sorted(fields)}"
    expect = case["expect"]
    if not isinstance(expect.get(verdict), bool) or not set(expect) <= {verdict} | optional:
        return f"expects {expect}"
    return None


def evaluate(opa, source, query, settings, document):
    with tempfile.TemporaryDirectory() as directory:
        paths = []
        for name, content in (("data", settings), ("input", document)):
            path = pathlib.Path(directory, name + ".json")
            path.write_text(json.dumps(content, ensure_ascii=False))
            paths.append(str(path))
        command = [opa, "eval", "--format", "json", "--data", str(source), "--data", paths[0], "--input", paths[1], query]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"failed to evaluate {source}: {done.stderr or done.stdout}")
    return json.loads(done.stdout)["result"][0]["expressions"][0]["value"]


def require_owner(opa, case):
    """The verdict in `opa` form: allowed, message."""
    source = HERE / "require-owner/src/policy.rego"
    answer = evaluate(opa, source, "data.require_owner.main", case["settings"], {"request": case["request"]})["response"]
    return answer["allowed"], answer.get("status", {}).get("message", "")


def jwt_claims(opa, case):
    """The result in the form of OPA's Envoy plugin: allowed, body."""
    source = HERE / "jwt-claims/src/policy.rego"
    answer = evaluate(opa, source, "data.jwt_claims.decision", case["settings"], case["request"])
    return answer["allowed"], answer.get("body", "")


def allowed_repos(opa, case):
    """The verdict in Gatekeeper form: a list of violations."""
    source = HERE / "allowed-repos/src/policy.rego"
    document = {"parameters": case["settings"], "review": case["request"]}
    violations = evaluate(opa, source, "data.allowed_repos.violation", {}, document)
    return not violations, "; ".join(violation["msg"] for violation in violations)


def objects(case, api_version, kind):
    return [o for o in case["objects"] if (o["apiVersion"], o["kind"]) == (api_version, kind)]


def known_runtime_class(opa, case):
    """Objects as `data.kubernetes`."""
    source = HERE / "known-runtime-class/src/policy.rego"
    classes = {o["metadata"]["name"]: o for o in objects(case, "node.k8s.io/v1", "RuntimeClass")}
    data = case["settings"] | {"kubernetes": {"runtimeclasses": classes}}
    answer = evaluate(opa, source, "data.known_runtime_class.main", data, {"request": case["request"]})["response"]
    return answer["allowed"], answer.get("status", {}).get("message", "")


def unique_label(opa, case):
    """Objects as `data.inventory`."""
    source = HERE / "unique-label/src/policy.rego"
    namespaces = {}
    for service in objects(case, "v1", "Service"):
        kinds = namespaces.setdefault(service["metadata"]["namespace"], {"v1": {"Service": {}}})
        kinds["v1"]["Service"][service["metadata"]["name"]] = service
    data = {"inventory": {"cluster": {}, "namespace": namespaces}}
    document = {"parameters": case["settings"], "review": case["request"]}
    violations = evaluate(opa, source, "data.unique_label.violation", data, document)
    return not violations, "; ".join(violation["msg"] for violation in violations)


def cluster_placement(opa, case):
    """The verdict in placement form: errors and annotations."""
    source = HERE / "cluster-placement/src/policy.rego"
    clusters = {o["metadata"]["name"]: o for o in objects(case, "fleet.example.com/v1", "Cluster")}
    data = case["settings"] | {"kubernetes": {"clusters": clusters}}
    answer = evaluate(opa, source, "data.cluster_placement.main", data, {"request": case["request"]})
    return not answer["errors"], "; ".join(answer["errors"])


def main(opa):
    judges = {"require-owner": require_owner, "allowed-repos": allowed_repos, "jwt-claims": jwt_claims,
              "known-runtime-class": known_runtime_class, "unique-label": unique_label, "cluster-placement": cluster_placement}
    errors, seen, judged = [], 0, 0
    for pattern, form in FORMS.items():
        for path in sorted(HERE.glob(pattern)):
            case = json.loads(path.read_text())
            seen += 1
            error = form_error(case, *form)
            judge = judges.get(path.relative_to(HERE).parts[0])
            if error is None and judge is not None:
                judged += 1
                allowed, message = judge(opa, case)
                expect = case["expect"]
                if allowed != expect["allowed"] or expect.get("message_contains", "") not in message:
                    error = f"OPA says allowed={allowed} {message!r}"
            if error is not None:
                errors.append(f"{path.relative_to(HERE)}: {error}")
    print("\n".join(errors + [f"{seen} cases, {judged} of them judged by OPA, {len(errors)} wrong"]))
    return 1 if errors or not judged else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    sys.exit(main(sys.argv[1]))
