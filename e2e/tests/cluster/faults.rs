//! What nodes, people and upgrades do to an installation.

use assent_e2e::{QUIET, up::condition};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    installation::{
        EVALUATORS, Installation, PLANES, SYSTEM, WORDS, items, name, pod, policy_path, uid,
        values, within_patience,
    },
    probe::{PODS, Probe, Request},
};

/// Programs, as their processes are called.
pub(crate) const PLANE: &str = "/usr/bin/assent-control-plane";
pub(crate) const EVALUATOR: &str = "/usr/bin/assent-evaluator";

/// A node is drained: the leader's, if modules are not served from it.
pub(crate) async fn drained_node(site: &Installation, probe: &Probe) {
    let leader = leader(site).await;
    let node = match node(&leader) {
        "node1" => "node2",
        other => other,
    };
    let drain = async {
        let drain = ["drain", node, "--delete-emptydir-data", "--timeout=150s"];
        site.kubectl.run(&drain).await;
        site.whole(3).await;
        let pods = [site.pods(EVALUATORS).await, site.pods(PLANES).await].concat();
        assert!(pods.iter().all(|pod| self::node(pod) != node), "{pods:#?}");
    };
    let step = async {
        steady(site, drain).await;
        site.change().await;
    };
    probe.through("a node is drained", &[], step).await;
    site.kubectl.run(&["uncordon", node]).await;
}

/// A pod that a control plane of another version has filled in, as far as can be seen, is
/// exchanged: its StatefulSet would never do it.
pub(crate) async fn outdated_pod(site: &Installation, probe: &Probe) {
    let before = site.pods(EVALUATORS).await;
    let step = async {
        let hash = "policies.assent.dev/evaluator-hash=another";
        let annotate = ["annotate", "--overwrite", "pod", name(&before[0]), hash];
        site.kubectl.within(SYSTEM).run(&annotate).await;
        site.ready(EVALUATORS, 3, &before[..1]).await;
        site.whole(3).await;
    };
    let what = "a pod has another's evaluator";
    probe.through(what, &[], steady(site, step)).await;
    let kept = site.pods(EVALUATORS).await;
    let kept = kept
        .iter()
        .filter(|pod| before.iter().any(|old| uid(old) == uid(pod)));
    assert_eq!(kept.count(), 2, "the others stay");
}

/// One evaluator ends without a word and starts again in its pod; then all pods go at once.
pub(crate) async fn killed_evaluators(site: &Installation, probe: &Probe) {
    let before = site.pods(EVALUATORS).await;
    let victim = &before[0];
    let step = async {
        kill_process_of(victim, EVALUATOR);
        let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{}", name(victim));
        let again = |pod: &Value| restarts(pod) > restarts(victim);
        site.wait(&path, "started again", again).await;
        site.whole(3).await;
    };
    let what = "an evaluator is killed in its pod";
    probe.through(what, &PODS, steady(site, step)).await;

    let step = async {
        kill_pods(site, &before, EVALUATOR).await;
        site.ready(EVALUATORS, 3, &before).await;
        site.whole(3).await;
    };
    let what = "the pods of all evaluators are killed";
    probe.through(what, &PODS, step).await;
    probe
        .through("a policy is edited", &[], site.change())
        .await;
}

/// The leader leaves in good order, and edits go on. The next one just vanishes.
pub(crate) async fn deleted_leader(site: &Installation, probe: &Probe) {
    let before = leader(site).await;
    let step = async {
        let system = site.kubectl.within(SYSTEM);
        let delete = ["delete", "pod", name(&before), "--wait=false"];
        system.run(&delete).await;
        site.change().await;
        site.led_by_another(&before).await;
        site.change().await;
        site.whole(3).await;
    };
    let what = "the leader is deleted";
    probe.through(what, &[], step).await;

    let before = leader(site).await;
    let step = async {
        kill_pods(site, std::slice::from_ref(&before), PLANE).await;
        site.led_by_another(&before).await;
        site.whole(3).await;
    };
    let what = "the leader is killed";
    let step = steady(site, step);
    probe.through(what, &[Request::Edit], step).await;
    probe
        .through("a policy is edited", &[], site.change())
        .await;
}

/// Nobody decides, and evaluators enforce what they have.
pub(crate) async fn killed_control_planes(site: &Installation, probe: &Probe) {
    let before = site.pods(PLANES).await;
    let step = async {
        kill_pods(site, &before, PLANE).await;
        site.ready(PLANES, 2, &before).await;
        site.whole(3).await;
    };
    let what = "both control planes are killed";
    let step = steady(site, step);
    probe.through(what, &[Request::Edit], step).await;
    probe
        .through("a policy is edited", &[], site.change())
        .await;
}

/// A node whose pods do not reach the control plane: its evaluators enforce what they have, are
/// named, and are waited for.
pub(crate) async fn cut_network(site: &Installation, probe: &Probe) {
    let evaluators = site.pods(EVALUATORS).await;
    let silent = &evaluators[0];
    let before = site.policy().await["status"]["active"]["generation"].clone();
    let cut = Cut::start(site, node(silent));
    let step = async {
        site.edit("example.com/exempt:*").await;
        let waits = |policy: &Value| {
            let programmed = condition(policy, "Programmed");
            programmed["observedGeneration"] == policy["metadata"]["generation"]
                && programmed["reason"] == "Reconciling"
                && applied(policy) + on_node(&evaluators, silent) == evaluators.len()
        };
        let policy = site.wait(&policy_path(), "waiting", waits).await;
        let words = condition(&policy, "Programmed")["message"].to_string();
        let silent = evaluators.iter().filter(|p| node(p) == node(silent));
        assert!(silent.map(name).any(|n| words.contains(n)), "{words}");

        // Long enough for a flip, if there were one.
        tokio::time::sleep(QUIET).await;
        let policy = site.policy().await;
        assert_eq!(policy["status"]["active"]["generation"], before);
        assert_eq!(condition(&policy, "Enforced")["status"], "False");
        let words = exempt(site).await.expect_err("the old revision must judge");
        assert!(words.contains(WORDS), "{words}");

        drop(cut);
        site.enforced().await;
        let taken = async || exempt(site).await.is_ok();
        within_patience("the new revision judges", taken).await;
        site.whole(3).await;
    };
    let what = "a node is cut off from the control plane";
    probe.through(what, &[], step).await;
}

/// Both sides are exchanged, pod by pod.
pub(crate) async fn upgrade(site: &Installation, probe: &Probe) {
    let upgrade = async {
        site.helm(&["upgrade"], &values("IfNotPresent"));
        rolled(site, "IfNotPresent", 3).await;
    };
    let step = async {
        steady(site, upgrade).await;
        site.change().await;
    };
    probe.through("the chart is upgraded", &[], step).await;
}

/// And back.
pub(crate) async fn rollback(site: &Installation, probe: &Probe) {
    let rollback = async {
        site.run_helm(&["rollback", "assent", "--wait"]);
        rolled(site, "Never", 2).await;
    };
    let step = async {
        steady(site, rollback).await;
        site.change().await;
    };
    probe.through("the chart is rolled back", &[], step).await;
}

/// Evaluators come and go.
pub(crate) async fn scaling(site: &Installation, probe: &Probe) {
    let step = async {
        for replicas in [6, 2] {
            let count = format!("--replicas={replicas}");
            let scale = ["scale", "policyserver", "default", &count];
            site.kubectl.run(&scale).await;
            site.whole(replicas).await;
        }
    };
    let what = "evaluators are scaled from 3 to 6 to 2";
    probe.through(what, &[], steady(site, step)).await;
}

/// Rules of a node that keep its pods from the control plane's discovery port. They go when this
/// is dropped.
pub(crate) struct Cut<'a> {
    site: &'a Installation,
    node: u8,
}

// === impl Cut ===

impl<'a> Cut<'a> {
    pub(crate) fn start(site: &'a Installation, node: &str) -> Self {
        let number = node.strip_prefix("node").and_then(|n| n.parse().ok());
        let node = number.expect("nodes must be numbered");
        let cut = Self { site, node };
        cut.rules("-I");
        cut
    }

    /// What goes there and what comes from there is dropped, as by a cable that is out. Where
    /// the leader is on this node, pods of other nodes still reach it.
    fn rules(&self, action: &str) {
        let pods = format!("10.244.{}.0/24", self.node);
        for (side, port) in [("--source", "--dport"), ("--destination", "--sport")] {
            let chain = ["iptables", "-w", action, "FORWARD"];
            let rule = [side, &pods, "-p", "tcp", port, "15010", "-j", "DROP"];
            let command = [&chain[..], &rule].concat();
            self.site.cluster.node(self.node, &command);
        }
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        self.rules("-D");
    }
}

/// Does something that changes nothing about what is enforced; nor does the policy's status say
/// so, not even for a moment.
async fn steady(site: &Installation, step: impl Future<Output = ()>) {
    let before = site.enforced().await;
    step.await;
    let after = site.enforced().await;
    let [before, after] = [&before, &after].map(|policy| condition(policy, "Enforced"));
    assert_eq!(before, after);
}

async fn leader(site: &Installation) -> Value {
    let leader = site.leader().await;
    leader.expect("a control plane must lead")
}

/// Waits until every evaluator was recreated with this pull policy.
async fn rolled(site: &Installation, pull_policy: &str, evaluators: usize) {
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods?labelSelector={EVALUATORS}");
    let is = |pod: &Value| pod["spec"]["containers"][0]["imagePullPolicy"] == pull_policy;
    let all = |list: &Value| items(list).iter().all(is);
    site.wait(&path, "exchanged", all).await;
    site.whole(evaluators).await;
}

/// Whether a pod is taken that only the newest revision lets through.
async fn exempt(site: &Installation) -> Result<String, String> {
    let pod = pod("exempt", "example.com/exempt:1", true);
    let file = tempfile::NamedTempFile::new().expect("a file must be made");
    std::fs::write(&file, pod.to_string()).expect("a file must be written");
    let file = file.path().to_str().expect("paths must be Unicode");
    let create = ["create", "--dry-run=server", "-f", file];
    site.kubectl.attempt(&create).await
}

/// Kills pods like a node that loses power: without notice.
async fn kill_pods(site: &Installation, pods: &[Value], program: &str) {
    for pod in pods {
        kill_process_of(pod, program);
    }
    let names: Vec<&str> = pods.iter().map(name).collect();
    let delete = [
        "delete",
        "pod",
        "--force",
        "--grace-period=0",
        "--wait=false",
    ];
    let system = site.kubectl.within(SYSTEM);
    system.run(&[&delete[..], &names].concat()).await;
}

/// `kill -9` for the one process of a pod that runs this program.
fn kill_process_of(pod: &Value, program: &str) {
    let killed = signal_process_of(pod, program, Signal::KILL);
    assert_eq!(killed, 1, "processes {program} of {}", name(pod));
}

/// Sends a signal to the processes of a pod that run this program, and returns their number:
/// one, unless the pod starts or ends.
pub(crate) fn signal_process_of(pod: &Value, program: &str, signal: Signal) -> usize {
    let group = format!("pod{}", uid(pod));
    let mut signalled = 0;
    for entry in std::fs::read_dir("/proc")
        .expect("/proc must be readable")
        .flatten()
    {
        let read =
            |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let pid: Option<i32> = entry.file_name().to_str().and_then(|pid| pid.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        if read("cgroup").contains(&group) && read("cmdline").starts_with(program) {
            signalled += usize::from(kill_process(pid, signal).is_ok());
        }
    }
    signalled
}

fn restarts(pod: &Value) -> i64 {
    let status = &pod["status"]["containerStatuses"][0];
    status["restartCount"].as_i64().unwrap_or(0)
}

fn applied(policy: &Value) -> usize {
    let applied = policy["status"]["rollout"]["applied"].as_u64();
    applied.and_then(|n| n.try_into().ok()).unwrap_or(0)
}

/// How many pods are on the node of this one.
fn on_node(pods: &[Value], pod: &Value) -> usize {
    pods.iter().filter(|other| node(other) == node(pod)).count()
}

pub(crate) fn node(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}
