//! What is allowed and yet likely to surprise.

use assent_api::{
    Parsed, ParsedServer,
    rules::{FailurePolicy, Rule},
};

use super::AdmissionView;

/// Every request that matches waits that long when evaluators do not answer.
const LONG_TIMEOUT_SECONDS: u32 = 15;

/// Warnings for a policy.
pub fn of_policy(policy: &Parsed, known: Option<&AdmissionView>) -> Vec<String> {
    let everything = policy.rules.iter().any(sees_everything);
    let fails = policy.failure_policy == FailurePolicy::Fail;
    let (server, seconds) = (&policy.server, policy.timeout_seconds);
    let missing = known.is_some_and(|known| !known.servers.contains_key(server));
    let candidates = [
        (everything && fails).then(|| {
            "spec.rules: with failurePolicy Fail and a rule for everything, nothing can be \
             changed while no evaluator answers; name resources"
                .to_owned()
        }),
        (policy.mutating && !fails).then(|| {
            "spec.failurePolicy: with Ignore objects are stored without the policy's changes \
             while no evaluator answers"
                .to_owned()
        }),
        (seconds > LONG_TIMEOUT_SECONDS).then(|| {
            format!("spec.timeoutSeconds: requests may wait for {seconds} s; clients often give up before")
        }),
        missing.then(|| {
            format!("spec.policyServer: there is no PolicyServer \"{server}\" yet; until there is, the policy is not enforced")
        }),
        policy.module.starts_with("http://").then(|| {
            "spec.module: http:// is not encrypted; it works only for hosts in the PolicyServer's \
             sources.insecure"
                .to_owned()
        }),
    ];
    candidates.into_iter().flatten().collect()
}

/// Warnings for a PolicyServer.
pub fn of_server(server: &ParsedServer, known: Option<&AdmissionView>) -> Vec<String> {
    let policies = known.and_then(|known| known.protecting.get(&server.name));
    let waiting = policies.is_some_and(|policies| !policies.is_empty());
    let idle = server.spec.replicas == 0 && waiting;
    let candidates = [idle.then(|| {
        "spec.replicas: policies wait for this PolicyServer; with 0 replicas they are not enforced"
            .to_owned()
    })];
    candidates.into_iter().flatten().collect()
}

fn sees_everything(rule: &Rule) -> bool {
    let has = |list: &[String], text: &str| list.iter().any(|item| item == text);
    has(&rule.resources, "*/*") || has(&rule.resources, "*") && has(&rule.api_groups, "*")
}
