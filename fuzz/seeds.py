#!/usr/bin/env python3
"""Writes the corpus: small inputs that the tests run over and fuzzing starts from.

Files whose name begins with "valid" must be accepted. What fuzzing finds is put beside them by hand.
"""

import hashlib
import json
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def put(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    (folder / name).write_bytes(content)


def texts(target, valid, keys=()):
    """Ways in which JSON can be wrong, made of a text that is right."""
    put(target, "empty", "")
    put(target, "truncated", valid[: len(valid) * 2 // 3])
    put(target, "trailing", valid + "x")
    put(target, "garbage", bytes(range(256)))
    put(target, "null", "null")
    put(target, "array", "[" + valid + "]")
    put(target, "byte-order-mark", "\ufeff" + valid)
    put(target, "bad-utf8", valid.encode().replace(b'":', b'\xff":', 1))
    put(target, "lone-surrogate", valid.replace('":"', '":"\\ud800', 1))
    put(target, "nul", valid.replace('":"', '":"\\u0000', 1))
    for key in keys:
        put(target, f"deep-{key}", '{"%s":%s0%s}' % (key, '{"a":[' * 1000, "]}" * 1000))
        put(target, f"huge-number-{key}", '{"%s":-%s.5e%s}' % (key, "9" * 400, "9" * 20))
        put(target, f"twice-{key}", '{"%s":1,"%s":"a"}' % (key, key))


# Reviews and requests.

REQUEST = {
    "uid": "0e1c4a57-3e5a-4a2b-9a68-2f6f6e9f0c1d",
    "kind": {"group": "", "version": "v1", "kind": "Pod"},
    "operation": "CREATE",
    "object": {"metadata": {"name": "a", "annotations": {"ü": "\n\u0001"}}, "n": 9223372036854775808},
    "options": None,
}
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": REQUEST}


# Calls of Envoy: a frame of gRPC with a CheckRequest.


def field(number, content):
    """A field of protobuf with a length."""
    if isinstance(content, str):
        content = content.encode()
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def call(path="/", headers=(), body=b"", raw=b""):
    http = field(2, "GET") + field(4, path) + field(5, "example.com") + field(11, body) + field(12, raw)
    for name, value in headers:
        http += field(3, field(1, name) + field(2, value))
    message = field(1, field(4, field(2, http)))
    return b"\0" + struct.pack(">I", len(message)) + message


def checks():
    kind = [("content-type", "application/json")]
    valid = call("/a/%C3%BC?b=c&b=%zz", [("x", "\u00fc")])
    put("check", "valid-get", valid)
    put("check", "valid-json", call(headers=kind, body=b'{"a":[1e999]}'))
    put("check", "valid-raw-json", call(headers=kind, raw=b"[]"))
    put("check", "valid-form", call(headers=[("content-type", "application/x-www-form-urlencoded")], body=b"a=1&a=2"))
    multipart = [("content-type", "multipart/form-data; boundary=x")]
    part = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'
    put("check", "valid-multipart", call(headers=multipart, body=part))
    put("check", "multipart-cut", call(headers=multipart, body=part[:30]))
    put("check", "empty", b"")
    put("check", "truncated", valid[: len(valid) * 2 // 3])
    put("check", "trailing", valid + b"x")
    put("check", "compressed", b"\1" + valid[1:])
    put("check", "garbage", bytes(range(256)))
    put("check", "huge-length", b"\0\xff\xff\xff\xff" + valid[5:])
    put("check", "no-http", b"\0\0\0\0\2" + field(1, b""))
    put("check", "bad-utf8", call(headers=[("x", b"\xff")]))
    put("check", "nul-in-path", call("/a%00"))
    put("check", "cut-escape", call("/a%2"))
    put("check", "deep-json", call(headers=kind, body=b"[" * 1000 + b"]" * 1000))
    put("check", "cut-json", call(headers=kind, body=b'{"a"'))


def reviews():
    valid = json.dumps(REVIEW, ensure_ascii=False)
    texts("review", valid, ["request", "apiVersion"])
    put("review", "valid-pod", valid)
    put("review", "valid-escaped", valid.replace("CREATE", "\\u0043REATE").replace("admission", "\\u0061dmission"))
    put("review", "valid-raw", '{"request":[1,"a",{"uid":7}]}')
    put("review", "old-version", valid.replace("io/v1", "io/v1beta1"))
    put("review", "no-uid", valid.replace('"uid"', '"guid"'))
    put("review", "uid-number", valid.replace('"0e1c4a57-3e5a-4a2b-9a68-2f6f6e9f0c1d"', "1e400"))
    deep = "[" * 200 + "]" * 200
    put("review", "deep-object", valid.replace('"annotations": {', '"deep": %s, "annotations": {' % deep))
    put("review", "brackets-in-strings", valid.replace('"a"', '"%s"' % ("[{\\\"" * 300)))
    put("review", "path", "/validate/cluster/a/1-00000000")
    put("review", "path-bad", "/audit/%00/../\ufffd")
    valid = json.dumps(REQUEST, ensure_ascii=False)
    texts("request", valid, ["options", "operation"])
    put("request", "valid-pod", valid)
    put("request", "valid-spaced-options", '{ "options" :\n null , "object" : null }')
    put("request", "options-in-string", '{"a":"\\"options\\":null","options":null}')
    put("request", "escaped-options", '{"\\u006fptions":null,"options":null}')


# Modules.

def leb(value):
    out = b""
    while True:
        low, value = value & 0x7F, value >> 7
        if not value:
            return out + bytes([low])
        out += bytes([low | 0x80])


def sized(content):
    return leb(len(content)) + content


def section(number, content):
    return bytes([number]) + sized(content)


METADATA = {
    "protocolVersion": "v1",
    "executionMode": "kubewarden-wapc",
    "policyType": "kubernetes",
    "mutating": False,
    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
    "annotations": {"io.kubewarden.policy.title": "a"},
    "contextAwareResources": [{"apiVersion": "v1", "kind": "Namespace"}],
    "hostCapabilities": ["oci/*"],
}


def modules():
    valid = json.dumps(METADATA)
    texts("metadata", valid, ["rules", "annotations", "mutating"])
    put("metadata", "valid-full", valid)
    put("metadata", "valid-empty", "{}")
    put("metadata", "valid-nulls", '{"rules":null,"annotations":null,"mutating":null,"policyType":null}')
    put("metadata", "future-protocol", '{"protocolVersion":"v2"}')
    put("metadata", "valid-unknown-protocol", '{"protocolVersion":"Unknown","executionMode":"opa"}')
    put("metadata", "unknown-mode", '{"executionMode":"magic"}')

    head = b"\0asm\x01\0\0\0"
    types = section(1, b"\x02\x60\x02\x7f\x7f\x00\x60\x02\x7f\x7f\x01\x7f")
    imports = section(2, b"\x01" + sized(b"wapc") + sized(b"__guest_error") + b"\x00\x00")
    functions = section(3, b"\x01\x01")
    memory = section(5, b"\x01\x00\x01")
    exports = section(7, b"\x02" + sized(b"__guest_call") + b"\x00\x01" + sized(b"memory") + b"\x02\x00")
    code = section(10, b"\x01" + sized(b"\x00\x41\x00\x0b"))
    custom = section(0, sized(b"io.kubewarden.metadata") + valid.encode())
    wapc = head + types + imports + functions + memory + exports + code + custom
    put("module", "valid-wapc", wapc)
    put("module", "valid-nothing", head)
    opa = section(2, b"\x02" + sized(b"env") + sized(b"opa_abort") + b"\x00\x00" + sized(b"env") + sized(b"memory") + b"\x02\x00\x02")
    data = section(11, b"\x01\x00\x41\x80\x80\x04\x0b\x01x")
    put("module", "valid-imported-memory", head + types + opa + data)
    put("module", "empty", b"")
    put("module", "component", b"\0asm\x0d\0\x01\0")
    put("module", "executable", b"\x7fELF\x02\x01\x01" + bytes(57))
    put("module", "garbage", head + bytes(range(256)))
    for cut in (9, 20, len(wapc) // 2, len(wapc) - 1):
        put("module", f"truncated-{cut}", wapc[:cut])
    put("module", "code-claims-more", head + types + b"\x0a\xff\xff\xff\xff\x0f\x01")
    put("module", "huge-counts", head + section(1, b"\xff\xff\xff\xff\x0f") + section(2, b"\xff\xff\xff\xff\x0f"))
    put("module", "long-name", head + section(0, b"\xff\xff\xff\xff\x0fa"))
    put("module", "metadata-twice", wapc + custom)
    put("module", "memory-of-4-gib", head + section(5, b"\x01\x00\x80\x80\x04"))
    put("module", "data-at-the-end", head + opa + section(11, b"\x01\x00\x41\x7f\x0b\x01x"))


# What guests answer.

def answers():
    valid = '{"accepted":true,"message":"a","code":200,"mutated_object":{"metadata":{"labels":{"a":"b"}}}}'
    texts("answers", valid, ["mutated_object", "accepted", "result"])
    put("answers", "valid-accepted", valid)
    put("answers", "valid-settings", '{"valid":true}')
    put("answers", "settings-refused", '{"valid":false,"message":"why"}')
    put("answers", "code-too-large", '{"accepted":false,"code":70000}')
    put("answers", "valid-opa", '[{"result":{"response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d"}}}]')
    put("answers", "opa-bad-patch", '[{"result":{"response":{"allowed":true,"patch":"*"}}}]')
    put("answers", "valid-opa-annotations", '[{"result":{"annotations":{"a":"b"},"errors":[]}}]')
    put("answers", "valid-gatekeeper", '[{"result":[{"msg":"a","details":{}}]}]')
    put("answers", "undefined", "[]")
    for name, args in {
        "sprintf": ["%05.3f %-10s %x %t %v %%", ["1.5", "a", 255, True, {"a": [None]}]],
        "sprintf-wide": ["%999999999d %*d %[9]s", [1]],
        "sprintf-huge": ["%d %e %b", [10**99, 10**99, 10**99]],
        "time": [9223372036854775807, "2006-01-02T15:04:05Z07:00"],
        "date-overflow": [9223372036854775807, 2147483647, -2147483648, 2147483647],
        "net": ["10.0.0.0/8", "::ffff:1.2.3.4/200"],
        "glob": ["**{a,{b,*}}[!x-", [], "a" * 100],
        "regex": ["(a*)*$", "a" * 60],
        "semver": ["1.2.3-4+5", "99999999999999999999.0.0"],
        "patch": [{"a": 1}, [{"op": "move", "from": "/a", "path": "/a/b"}]],
        "numbers": [1, 1000000000],
        "base64": ["====", "AAA", "\u20ac"],
        "units": ["1.5Ki", "9" * 200 + "E"],
    }.items():
        put("answers", f"args-{name}", json.dumps(args))
    put("answers", "rego-set", '{1,2,{"a"},{"b":{3}}}')
    put("answers", "rego-deep", "[" * 1000 + "]" * 1000)
    put("answers", "rego-empty-set", "set()")


# Guests: which calls they make, what their functions return, what their memory holds.

WAPC, OPA, GATEKEEPER, WASI = 0, 1, 2, 3


def guest(abi, calls, returns, data=b""):
    out = bytes([abi, len(calls)])
    for index, *args in calls:
        out += bytes([index]) + b"".join(struct.pack("<i", arg) for arg in args)
    return out + b"".join(struct.pack("<i", value) for value in returns) + data


def at(parts):
    """Puts texts at addresses."""
    memory = bytearray(max(place + len(text) for place, text in parts))
    for place, text in parts:
        memory[place : place + len(text)] = text
    return bytes(memory)


def guests():
    accepted = b'{"accepted":true,"valid":true}'
    put("guest", "valid-wapc", guest(WAPC, [(1, 0, len(accepted))], [1], accepted))
    put("guest", "wapc-silent", guest(WAPC, [], [1]))
    put("guest", "wapc-error", guest(WAPC, [(2, 0, 3)], [0], b"\xff\xfeno"))
    put("guest", "wapc-outside", guest(WAPC, [(1, -1, -1)], [1]))
    put("guest", "wapc-edge", guest(WAPC, [(1, 131072, 0), (3, 131071, 1), (0, 131060, 131000)], [1]))
    names = [(0, b"kubewarden"), (16, b"crypto"), (32, b"v1/is_certificate_trusted")]
    trusted = b'{"cert":{"encoding":"Pem","data":[45,45]},"cert_chain":null,"not_after":"2026"}'
    call = (4, 0, 10, 16, 6, 32, 25, 64, len(trusted))
    put("guest", "wapc-certificate", guest(WAPC, [call, (6,), (8, 4096), (1, 4096, 20)], [1], at(names + [(64, trusted)])))
    names = [(0, b"kubewarden"), (16, b"tracing"), (32, b"log")]
    log = b'{"level":"WARN","message":{"a":"\\ud800"}}'
    call = (4, 0, 10, 16, 7, 32, 3, 64, len(log))
    put("guest", "wapc-log", guest(WAPC, [call, (3, 64, 9)], [1], at(names + [(64, log)])))
    put("guest", "wapc-calls-with-nothing", guest(WAPC, [(4, 0, 0, 0, 0, 0, 0, 0, 0), (5,), (7, 0), (7, 131073)], [1]))

    piece = struct.pack("<ii", 0, len(accepted))
    memory = at([(0, accepted), (64, piece)])
    put("guest", "valid-wasi", guest(WASI, [(1, 1, 64, 1, 80)], [], memory))
    put("guest", "valid-wasi-exit", guest(WASI, [(1, 1, 64, 1, 80), (15, 0)], [], memory))
    put("guest", "wasi-exit-1", guest(WASI, [(15, 1)], []))
    put("guest", "wasi-reads-all", guest(WASI, [(0, 0, 64, 1, 80), (0, 0, 64, -1, 80)], [], memory))
    put("guest", "wasi-writes-outside", guest(WASI, [(1, 1, -8, 2, 0), (1, 2, 64, 1000, -4)], [], memory))
    put("guest", "wasi-random-outside", guest(WASI, [(12, 0, 70000), (12, -1, -1)], []))
    clock = struct.pack("<QBxxxxxxxIxxxxQQHxxxxxx", 7, 0, 1, 10**15, 0, 0)
    put("guest", "wasi-sleeps", guest(WASI, [(13, 0, 512, 1, 600)], [], clock))
    put("guest", "wasi-polls-nothing", guest(WASI, [(13, 0, 0, 0, 0), (13, 0, 0, -1, 0)], []))
    every = [(n,) + (-1,) * c for n, c in enumerate([4, 4, 1, 4, 2, 2, 2, 2, 2, 2, 3, 2, 2, 4, 9])]
    put("guest", "wasi-every-call-outside", guest(WASI, every, []))
    zero = [(n,) + (0,) * c for n, c in enumerate([4, 4, 1, 4, 2, 2, 2, 2, 2, 2, 3, 2, 2, 4, 9])]
    put("guest", "wasi-every-call-at-zero", guest(WASI, zero, []))

    def rego(abi, result, builtins=b"{}", calls=(), argument=b"[]", malloc=66000):
        memory = at([(0, builtins + b"\0"), (256, result + b"\0"), (1024, argument + b"\0")])
        # opa_eval, heap, malloc, json_parse, json_dump, builtins, entrypoints, value_parse, value_dump
        return guest(abi, list(calls), [256, 70000, malloc, 1, 0, 1, 1, 1, 1024], memory)

    put("guest", "valid-opa", rego(OPA, b'[{"result":{"allowed":true}}]'))
    put("guest", "valid-gatekeeper", rego(GATEKEEPER, b'[{"result":[]}]'))
    put("guest", "opa-undefined", rego(OPA, b"[]"))
    put("guest", "opa-malloc-outside", rego(OPA, b"[]", malloc=-1))
    put("guest", "opa-malloc-at-the-end", rego(OPA, b"[]", malloc=131070))
    put("guest", "opa-bad-table", rego(OPA, b"[]", builtins=b'{"a":-1,"b":2147483648}'))
    put("guest", "opa-sparse-table", rego(OPA, b"[]", builtins=b'{"sprintf":2000000000}'))
    put("guest", "opa-aborts", rego(OPA, b"[]", calls=[(0, 256)]))
    put("guest", "opa-prints", rego(OPA, b'[{"result":{"allowed":true}}]', calls=[(1, 256), (1, -1)]))
    calls = [(2, 0, 0), (3, 0, 0, 1), (4, 0, 0, 1, 1), (5, 0, 0, 1, 1, 1), (6, 0, 0, 1, 1, 1, 1)]
    for name in ("sprintf", "json.patch", "time.now_ns", "regex.match", "no.such"):
        table = json.dumps({name: 0}).encode()
        put("guest", f"opa-calls-{name}", rego(OPA, b"[]", table, calls, b'["%d",[1]]'))
    put("guest", "opa-calls-unlisted", rego(OPA, b"[]", calls=[(2, 7, 0), (2, -1, 0)]))
    put("guest", "empty", b"")
    put("guest", "ones", b"\xff" * 400)
    put("guest", "counting", bytes(range(256)) * 2)


# Sets.

def field(number, value):
    if isinstance(value, int):
        return leb(number << 3) + leb(value)
    if isinstance(value, str):
        value = value.encode()
    return leb(number << 3 | 2) + sized(value)


def framed_text(text):
    return struct.pack(">I", len(text.encode())) + text.encode()


NAME = "cluster/a/1-00000000"
MODULE = "sha256:" + hashlib.sha256(b"module").hexdigest()


def policy(settings="{}", digest=None):
    content = framed_text(MODULE) + framed_text("wapc") + framed_text(settings)
    content += bytes([1, 0]) + struct.pack(">IQ", 2000, 128 << 20) + struct.pack(">II", 0, 0)
    content += framed_text("") + framed_text("")
    computed = hashlib.sha256(b"assent.policy.v1" + content).digest()
    announced = digest or "sha256:" + computed.hex()
    limits = field(1, 2000) + field(2, 128 << 20)
    message = field(1, NAME) + field(2, "cluster/a") + field(3, 1) + field(4, MODULE) + field(5, announced)
    message += field(6, "wapc") + field(7, settings) + field(8, 1) + field(10, limits) + field(14, 6)
    return message, computed


def whole(message, computed, state=1, version=None):
    snapshot = struct.pack(">I", 1) + framed_text(NAME) + computed
    snapshot += struct.pack(">I", 1) + framed_text(NAME) + struct.pack(">I", 1) + framed_text(NAME) + bytes([state])
    version = version or hashlib.sha256(b"assent.snapshot.v1" + snapshot).hexdigest()
    route = field(1, NAME) + field(2, NAME) + field(3, state)
    return field(1, version) + field(2, message) + field(5, route)


def sets():
    valid = whole(*policy())
    empty = field(1, hashlib.sha256(b"assent.snapshot.v1" + bytes(8)).hexdigest())
    put("set", "valid-one-policy", valid)
    put("set", "valid-empty-set", empty)
    put("set", "nothing", b"")
    put("set", "garbage", bytes(range(256)))
    put("set", "wrong-version", whole(*policy(), version="0" * 64))
    put("set", "bad-version", whole(*policy(), version="\u20ac"))
    put("set", "bad-content-digest", whole(*policy(digest="sha256:00")))
    put("set", "other-content-digest", whole(*policy(digest="sha256:" + "0" * 64)))
    put("set", "unknown-state", whole(*policy(), state=99))
    put("set", "policy-twice", valid + field(2, policy()[0]))
    put("set", "route-twice", valid + field(5, field(1, NAME) + field(3, 1)))
    put("set", "nameless", field(2, field(5, MODULE)))
    put("set", "no-change", field(6, 1))
    put("set", "length-beyond-the-end", b"\x12\xff\xff\xff\xff\x0f")
    put("set", "ten-byte-numbers", b"\x50" + b"\xff" * 9 + b"\x01" + b"\x58" + b"\xff" * 11)
    put("set", "groups", b"\x13" * 300)
    for cut in (1, len(valid) // 2, len(valid) - 1):
        put("set", f"truncated-{cut}", valid[:cut])

    def kept(body, whole=b"\x01"):
        return b"assent-set-1\n" + whole + hashlib.sha256(whole + body).digest() + body

    put("kept_set", "valid-one-policy", kept(valid))
    put("kept_set", "valid-partly-refused", kept(valid, b"\0"))
    put("kept_set", "empty", b"")
    put("kept_set", "only-the-magic", b"assent-set-1\n")
    put("kept_set", "other-layout", kept(valid).replace(b"set-1", b"set-2"))
    put("kept_set", "cut-in-the-digest", kept(valid)[:30])
    put("kept_set", "cut-in-the-content", kept(valid)[:-1])
    put("kept_set", "flipped-bit", kept(valid)[:-1] + bytes([kept(valid)[-1] ^ 1]))
    put("kept_set", "flag-changed", kept(valid).replace(b"\n\x01", b"\n\x00", 1))
    put("kept_set", "wrong-version", kept(whole(*policy(), version="0" * 64)))
    put("kept_set", "garbage-with-its-digest", kept(bytes(range(256))))
    put("kept_set", "zeros", bytes(4096))


if __name__ == "__main__":
    checks()
    reviews()
    modules()
    answers()
    guests()
    sets()
