//! Checks of the record. Each names the invariant that it is about.

use std::{collections::BTreeMap, time::Duration};

use assent_e2e::kube::api;
use serde_json::Value;

use super::{
    Soak,
    history::{Entry, PolicyState, What, is_main},
    people::SECOND,
};
use crate::{
    installation::{EVALUATORS, PLANES, POLICY, items, name},
    probe::Request,
};

/// How long an API server may use the webhook configuration that it knew before a flip, and how
/// late the watch may report one.
const LAG: Duration = Duration::from_secs(5);

/// How long after a fault requests may fail: until endpoints are ready again, or gone from every
/// node's rules.
const EXCUSED: Duration = Duration::from_secs(60);

/// Status writes for one object: one per second, and some after a quiet time.
const BURST: usize = 10;

impl Soak {
    /// Fails with everything that is wrong, not only the first.
    pub(super) async fn check(&self) {
        let entries = self.history.entries();
        let mut broken = Vec::new();
        broken.extend(unenforced(&entries));
        broken.extend(unexplained_failures(&entries));
        broken.extend(went_back(&entries));
        broken.extend(overstated(&entries));
        broken.extend(decided_by_none(&entries));
        broken.extend(written_too_often(&entries));
        broken.extend(self.second_is_settled().await);
        broken.extend(self.no_pod_ran_out_of_memory().await);
        assert!(
            broken.is_empty(),
            "{} violations: {broken:#?}",
            broken.len()
        );
    }

    /// I5, I8: the second policy is as its users left it: gone without a trace, enforced, or
    /// rejected.
    async fn second_is_settled(&self) -> Vec<String> {
        let path = format!("{}/{SECOND}", api::POLICIES);
        let answer = api::try_ask(&self.site.client, "GET", &path, &Value::Null).await;
        let webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let webhooks = api::get(&self.site.client, webhooks).await;
        let own = format!("assent.cluster.{SECOND}");
        let routed = items(&webhooks).iter().any(|w| name(w) == own);
        let revisions = "/apis/policies.assent.dev/v1alpha1/policyrevisions";
        let revisions = api::get(&self.site.client, revisions).await;
        let stored = items(&revisions)
            .iter()
            .any(|r| r["spec"]["policyRef"]["name"] == SECOND);
        match answer {
            Ok((404, _)) if !routed && !stored => Vec::new(),
            Ok((404, _)) => vec![format!("I5: {SECOND} is deleted, its objects are not")],
            Ok((200, policy)) if policy["metadata"]["deletionTimestamp"].is_string() => {
                vec![format!("I5: {SECOND} is still being deleted: {policy}")]
            }
            _ => Vec::new(),
        }
    }

    /// I10.
    async fn no_pod_ran_out_of_memory(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for query in [EVALUATORS, PLANES] {
            for pod in self.site.pods(query).await {
                let states = ["state", "lastState"];
                let reasons = states.map(|state| {
                    let status = &pod["status"]["containerStatuses"][0];
                    status[state]["terminated"]["reason"].clone()
                });
                if reasons.iter().any(|reason| reason == "OOMKilled") {
                    broken.push(format!("I10: {} ran out of memory", name(&pod)));
                }
            }
        }
        broken
    }
}

/// I1, I9: nothing that the policy denies was accepted, whatever happened.
fn unenforced(entries: &[Entry]) -> Vec<String> {
    let failures = entries.iter().filter_map(|entry| match &entry.what {
        What::Response(_, _, Err(failure)) if failure.unenforced => Some((entry, failure)),
        _ => None,
    });
    failures
        .map(|(entry, failure)| format!("I1 at {:?}: {failure}", entry.at))
        .collect()
}

/// I12: requests fail only while a fault excuses it, and an unknown path never is the reason.
fn unexplained_failures(entries: &[Entry]) -> Vec<String> {
    let mut broken = Vec::new();
    for entry in entries {
        let What::Response(sent, request, Err(failure)) = &entry.what else {
            continue;
        };
        let excused = entries.iter().any(|fault| {
            let What::Fault(_, may_fail) = &fault.what else {
                return false;
            };
            may_fail.contains(request) && fault.at <= entry.at && *sent <= fault.at + EXCUSED
        });
        let is_unknown_path = failure.message.contains("404");
        if !excused || (is_unknown_path && *request != Request::Edit) {
            broken.push(format!("I12 at {:?}: {failure}", entry.at));
        }
    }
    broken
}

/// I2: the webhook of a policy names ever newer generations.
fn went_back(entries: &[Entry]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut newest = 0;
    for (at, generation) in routed(entries) {
        match generation {
            Some(generation) if generation < newest => {
                broken.push(format!("I2 at {at:?}: from {newest} to {generation}"));
            }
            Some(generation) => newest = generation,
            None => broken.push(format!("I1 at {at:?}: the webhook is gone")),
        }
    }
    broken
}

/// I4, I6: a status claims only what the webhook and the replicas have shown.
fn overstated(entries: &[Entry]) -> Vec<String> {
    let mut broken = Vec::new();
    for (at, policy) in policies(entries).filter(|(_, policy)| is_main(&policy.name)) {
        let newest = routed(entries)
            .filter(|(routed, _)| *routed <= at + LAG)
            .filter_map(|(_, generation)| generation)
            .max();
        if policy.enforced && newest < Some(policy.observed) {
            broken.push(format!(
                "I4 at {at:?}: {policy:?}, the webhook names {newest:?}"
            ));
        }
        let is_current = policy.observed == policy.generation;
        if policy.programmed && is_current && policy.applied > policy.desired {
            broken.push(format!("I4 at {at:?}: {policy:?}"));
        }
    }
    broken
}

/// I2, I3, I6: each decision is that of one revision that the webhook named at the time.
fn decided_by_none(entries: &[Entry]) -> Vec<String> {
    let contents: BTreeMap<i64, Option<u64>> = policies(entries)
        .filter(|(_, policy)| is_main(&policy.name))
        .map(|(_, policy)| (policy.generation, policy.content))
        .collect();
    let flips: Vec<(Duration, i64)> = routed(entries)
        .filter_map(|(at, generation)| Some((at, generation?)))
        .collect();
    let mut broken = Vec::new();
    for entry in entries {
        let What::Decision(sent, content, Some(accepted)) = &entry.what else {
            continue;
        };
        let (from, to) = (sent.saturating_sub(LAG), entry.at + LAG);
        let possible = flips.iter().enumerate().filter(|(index, (at, _))| {
            let until = flips.get(index + 1).map(|(until, _)| *until);
            *at <= to && until.is_none_or(|until| until >= from)
        });
        let possible: Vec<Option<u64>> = possible
            .filter_map(|(_, (_, generation))| contents.get(generation).copied())
            .collect();
        let explains = |exempt: &Option<u64>| (*exempt == Some(*content)) == *accepted;
        if !possible.iter().any(explains) {
            broken.push(format!(
                "I3 at {:?}: content {content} accepted: {accepted}, though {possible:?} decided",
                entry.at
            ));
        }
    }
    broken
}

/// I11: beside its users' changes a policy is written about once a second.
fn written_too_often(entries: &[Entry]) -> Vec<String> {
    let mut broken = Vec::new();
    for policy in [POLICY, SECOND] {
        let own: Vec<(Duration, &PolicyState)> = policies(entries)
            .filter(|(_, state)| state.name == policy)
            .collect();
        let pairs = own.windows(2);
        let writes = pairs.filter(|pair| pair[0].1.generation == pair[1].1.generation);
        let writes: Vec<Duration> = writes.map(|pair| pair[1].0).collect();
        for (index, first) in writes.iter().enumerate() {
            let within = writes[index..].iter();
            let within = within.take_while(|at| **at <= *first + Duration::from_secs(10));
            let count = within.count();
            if count > 10 + BURST {
                broken.push(format!(
                    "I11 at {first:?}: {count} writes of {policy} in 10 s"
                ));
                break;
            }
        }
    }
    broken
}

/// What the webhook of the policy under load named, and when.
fn routed(entries: &[Entry]) -> impl Iterator<Item = (Duration, Option<i64>)> {
    entries.iter().filter_map(|entry| match &entry.what {
        What::Routed(name, generation) if is_main(name) => Some((entry.at, *generation)),
        _ => None,
    })
}

fn policies(entries: &[Entry]) -> impl Iterator<Item = (Duration, &PolicyState)> {
    entries.iter().filter_map(|entry| match &entry.what {
        What::Policy(policy) => Some((entry.at, &**policy)),
        _ => None,
    })
}
