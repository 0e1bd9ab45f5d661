#!/usr/bin/env python3
"""Writes the configuration files of a cluster's parts. YAML is written as JSON, which it includes."""

import base64
import json
import pathlib
import sys

API = "https://10.200.0.1:6443"
DNS = "10.96.0.10"


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))


def kubeconfig(path, server, pki, user):
    """With everything inside, so that it can be copied."""
    data = lambda name: base64.b64encode((pki / name).read_bytes()).decode()
    write(path, {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "assent",
        "contexts": [{"name": "assent", "context": {"cluster": "assent", "user": user}}],
        "clusters": [{"name": "assent", "cluster": {"server": server, "certificate-authority-data": data("ca.crt")}}],
        "users": [{"name": user, "user": {
            "client-certificate-data": data(f"{user}.crt"),
            "client-key-data": data(f"{user}.key"),
        }}],
    })


def containerd(node, cni_plugins, snapshotter):
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{node}/containerd/root"
state = "{node}/containerd/state"
[grpc]
address = "{node}/containerd.sock"
[ttrpc]
address = "{node}/containerd.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "{node}/containerd/opt"
[{cri}]
sandbox_image = "localhost/pause:1"
disable_apparmor = true
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "{cni_plugins}"
conf_dir = "{node}/cni"
[{cri}.containerd]
snapshotter = "{snapshotter}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def network(node, number):
    """Each pod has a pair of interfaces and a route: all its traffic is routed, none is bridged past the Service rules."""
    ipam = {
        "type": "host-local",
        "dataDir": f"{node}/addresses",
        "ranges": [[{"subnet": f"10.244.{number}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


def kubelet(node, number, pki, cgroup):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": f"10.200.0.{number}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/node{number}.crt",
        "tlsPrivateKeyFile": f"{pki}/node{number}.key",
        "containerRuntimeEndpoint": f"unix://{node}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}/node{number}",
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{node}/resolv.conf",
        "podLogsDir": f"{node}/pod-logs",
        "volumePluginDir": f"{node}/volume-plugins",
        "oomScoreAdj": 0,
        "healthzBindAddress": "127.0.0.1",
        "nodeStatusUpdateFrequency": "4s",
        # The disk is the machine's, and none of a test's business until it is full.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # Images come by `load` alone: one that is collected as unused never comes back.
        "imageGCHighThresholdPercent": 100,
    }


def kube_proxy(node, number):
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": f"10.200.0.{number}",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": f"{node}/kube-proxy.kubeconfig"},
        "clusterCIDR": "10.244.0.0/16",
        "mode": "iptables",
        # These are of the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def objects():
    """What a cluster has beside its parts: a default storage class, and the Service of its DNS server."""
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    return {"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "standard", "annotations": default},
            "provisioner": "kubernetes.io/host-path",
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": DNS,
                "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in ports],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.200.0.1"]}],
            "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in ports],
        },
    ]}


def corefile(cluster):
    return f""".:53 {{
    bind 10.200.0.1
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {cluster}/inside.kubeconfig
        ttl 1
    }}
}}
"""


def control_plane(cluster, port):
    pki = cluster / "pki"
    kubeconfig(cluster / "kubeconfig", f"https://127.0.0.1:{port}", pki, "admin")
    kubeconfig(cluster / "inside.kubeconfig", API, pki, "admin")
    for user in ("controllers", "scheduler"):
        kubeconfig(cluster / f"{user}.kubeconfig", API, pki, user)
    write(cluster / "objects.json", objects())
    write(cluster / "Corefile", corefile(cluster))


def node(cluster, number, cgroup, cni_plugins, snapshotter):
    pki, home = cluster / "pki", cluster / f"node{number}"
    kubeconfig(home / "kubelet.kubeconfig", API, pki, f"node{number}")
    kubeconfig(home / "kube-proxy.kubeconfig", API, pki, "kube-proxy")
    write(home / "containerd.toml", containerd(home, cni_plugins, snapshotter))
    write(home / "cni" / "10-pods.conflist", network(home, number))
    write(home / "kubelet.json", kubelet(home, number, pki, cgroup))
    write(home / "kube-proxy.json", kube_proxy(home, number))
    write(home / "resolv.conf", "")


def main():
    what, cluster, *more = sys.argv[1:]
    cluster = pathlib.Path(cluster)
    if what == "control-plane":
        control_plane(cluster, *more)
    elif what == "node":
        node(cluster, *more)
    else:
        sys.exit("usage: config.py control-plane CLUSTER PORT | node CLUSTER NUMBER CGROUP CNI_PLUGINS SNAPSHOTTER")


if __name__ == "__main__":
    main()
