//! Settings that come from Secrets.

use assent_api::{
    parse::Rollback,
    settings::{SecretSettings, SettingsKey},
};
use assent_controller::{Action, Failure, Outcome, VetJob};
use assent_core::{
    RevisionId,
    rollout::{Refusal, RefusalReason},
};
use serde_json::json;

use super::Cluster;
use crate::{
    harness::{mk_module, settings},
    world::World as _,
};

const REPLICAS: [&str; 1] = ["r-0"];

/// The settings of a generation of `a`, with this value in its Secret.
fn mk_settings(cluster: &Cluster, generation: i64, token: &str) -> SecretSettings {
    let id = cluster.id("a");
    let name = RevisionId::new(&id.key, generation, &id.uid);
    let key = cluster.world.config().parse.settings_key.unwrap();
    let json = json!({ "token": token }).to_string();
    key.protect(name.as_str(), json.into_bytes())
}

/// Vets what is to be vetted, with this value in the Secret.
fn vet(cluster: &mut Cluster, token: &str) -> Box<VetJob> {
    let job = cluster.only_vet();
    assert_eq!(job.settings_from[0].secret_key_ref.name, "db");
    let read = || mk_settings(cluster, job.generation, token);
    let mut module = mk_module(&job.url);
    module.secret_settings = Some(job.secret_settings.clone().unwrap_or_else(read));
    cluster.vetted(&job, Ok(module));
    job
}

/// `a` is enforced with this value in its Secret.
fn enforced(token: &str) -> Cluster {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_policy("a", |spec| {
        let reference = json!({"name": "db", "key": "token"});
        spec["settingsFrom"] = json!([{"secretKeyRef": reference, "path": "token"}]);
    });
    vet(&mut cluster, token);
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.condition("a", "Enforced"), "True Enforced");
    cluster
}

/// The Secret is read again; `None` if it is gone.
fn check(cluster: &mut Cluster, token: Option<&str>) {
    cluster.controller.resync(cluster.now());
    let actions = cluster.actions();
    let mut checks = actions.into_iter().filter_map(|action| match action {
        Action::CheckSettings(check) => Some(check),
        _ => None,
    });
    let found = checks.next().expect("settings must be checked");
    let settings = token.map(|token| mk_settings(cluster, found.generation, token));
    let result = settings.map(|settings| settings.version);
    let outcome = Outcome::SettingsChecked {
        id: found.id,
        generation: found.generation,
        result: result.ok_or_else(|| "there is no such Secret".to_owned()),
    };
    cluster.controller.outcome(cluster.now(), outcome);
}

/// The settings that evaluators get.
fn published(cluster: &Cluster) -> Vec<String> {
    let snapshot = cluster.published("default").unwrap();
    let policies = snapshot.policies();
    let settings = policies.map(|p| String::from_utf8_lossy(&p.content.settings_json).into_owned());
    settings.collect()
}

#[test]
fn value_is_sent_to_evaluators_and_stored_encrypted() {
    let cluster = enforced("hunter2");
    assert_eq!(published(&cluster), [r#"{"token":"hunter2"}"#]);
    let stored = cluster.world.dump();
    assert!(stored.contains("sealedSettings") && !stored.contains("hunter2"));
    let formatted = format!("{:?}", cluster.published("default").unwrap());
    assert!(!formatted.contains("hunter2"));
}

#[test]
fn next_process_reads_no_secret() {
    let cluster = enforced("hunter2");
    let version = cluster.published("default").unwrap().version();
    let mut next = cluster.restart(true, &REPLICAS);
    assert_eq!(next.run_with(&REPLICAS), Vec::<String>::new());
    assert_eq!(next.published("default").unwrap().version(), version);
    assert_eq!(published(&next), [r#"{"token":"hunter2"}"#]);
}

/// Replicas may hold the stored candidate, so that it keeps the value that it was made with.
#[test]
fn stored_candidate_keeps_its_value() {
    let mut cluster = enforced("hunter2");
    cluster.put_policy("a", |spec| settings(spec, 2));
    vet(&mut cluster, "hunter3");
    cluster.run();
    let mut next = cluster.restart(false, &REPLICAS);
    let actions = next.actions();
    let vets = actions.into_iter().filter_map(|action| match action {
        Action::Vet(job) => Some(job),
        _ => None,
    });
    let vets: Vec<_> = vets.collect();
    let known = vets[0].secret_settings.as_ref().unwrap();
    assert_eq!(&*known.json, br#"{"token":"hunter3"}"#);
    let mut module = mk_module(&vets[0].url);
    module.secret_settings = Some(known.clone());
    next.vetted(&vets[0], Ok(module));
    next.run_with(&REPLICAS);
    assert_eq!(next.world.routed("a"), Some(2));
    assert_eq!(published(&next), [r#"{"token":"hunter3"}"#]);
}

#[test]
fn changed_value_makes_a_new_generation() {
    let mut cluster = enforced("hunter2");
    check(&mut cluster, Some("hunter2"));
    assert!(cluster.run().is_empty(), "nothing changed");
    cluster.events();
    check(&mut cluster, Some("hunter3"));
    let action = cluster.only_action();
    assert_eq!(cluster.events(), ["a SettingsChanged"]);
    cluster.perform(action);
    assert_eq!(cluster.world.generation("a"), Some(2));
    assert_eq!(vet(&mut cluster, "hunter3").generation, 2);
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.world.routed("a"), Some(2));
    assert_eq!(published(&cluster), [r#"{"token":"hunter3"}"#]);
    assert!(!cluster.world.dump().contains("hunter"));
}

#[test]
fn value_that_changes_back_after_a_rollback_makes_another_generation() {
    let mut cluster = enforced("hunter2");
    check(&mut cluster, Some("hunter3"));
    let action = cluster.only_action();
    cluster.perform(action);
    vet(&mut cluster, "hunter3");
    cluster.run_with(&REPLICAS);
    cluster.roll_back("a", Rollback::Previous, 1);
    let action = cluster.only_action();
    cluster.perform(action);
    // The spec is that of generation 1, and the value is the present one.
    assert!(vet(&mut cluster, "hunter3").secret_settings.is_none());
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.world.routed("a"), Some(3));
    assert_eq!(published(&cluster), [r#"{"token":"hunter3"}"#]);
    for (token, generation) in [("hunter2", 4), ("hunter3", 5), ("hunter2", 6)] {
        check(&mut cluster, Some(token));
        let action = cluster.only_action();
        cluster.perform(action);
        assert_eq!(vet(&mut cluster, token).generation, generation);
        cluster.run_with(&REPLICAS);
        assert_eq!(cluster.world.routed("a"), Some(generation));
    }
}

/// Whoever annotates a policy that names no Secret was not asked whether he may read one.
#[test]
fn rollback_does_not_reach_secrets_that_the_policy_does_not_name_now() {
    let mut cluster = enforced("hunter2");
    cluster.put_policy("a", |spec| {
        spec.as_object_mut().unwrap().remove("settingsFrom");
    });
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.world.routed("a"), Some(2));
    cluster.events();
    cluster.roll_back("a", Rollback::Previous, 1);
    cluster.run_with(&REPLICAS);
    assert_eq!(cluster.world.generation("a"), Some(2));
    assert_eq!(cluster.events(), ["a RollbackRefused"]);
}

#[test]
fn missing_secret_is_reported_and_ends_no_protection() {
    let mut cluster = enforced("hunter2");
    cluster.events();
    check(&mut cluster, None);
    assert!(cluster.run().is_empty(), "it must stay enforced");
    assert_eq!(cluster.world.routed("a"), Some(1));
    let enforced = cluster.condition("a", "Enforced");
    assert_eq!(enforced, "True SettingsUnavailable");
    let message = cluster.message("a", "Enforced");
    assert!(message.ends_with(": there is no such Secret"), "{message}");
    assert_eq!(cluster.events(), ["a SettingsUnavailable"]);
    check(&mut cluster, Some("hunter2"));
    assert!(cluster.run().is_empty());
    assert_eq!(cluster.condition("a", "Enforced"), "True Enforced");
}

#[test]
fn generation_without_its_secret_is_retried() {
    let mut cluster = enforced("hunter2");
    cluster.put_policy("a", |spec| settings(spec, 2));
    let job = cluster.only_vet();
    let failure = Failure {
        refusal: Refusal {
            reason: RefusalReason::SettingsUnavailable,
            message: "there is no such Secret".into(),
        },
        retryable: true,
    };
    for _ in 0..5 {
        cluster.vetted(&job, Err(failure.clone()));
        assert_eq!(cluster.actions().len(), 0);
        let accepted = cluster.condition("a", "Accepted");
        assert_eq!(accepted, "False SettingsUnavailable");
        assert_eq!(cluster.condition("a", "Ready"), "True LastGood");
        cluster.pass(std::time::Duration::from_secs(300));
        assert_eq!(cluster.only_vet().generation, 2);
    }
}

#[test]
fn revision_of_a_lost_key_is_kept_by_name_and_replaced() {
    let mut cluster = enforced("hunter2");
    let version = cluster.published("default").unwrap().version();
    cluster
        .world
        .replace_settings_key(SettingsKey::new(&[8; 32]));
    let mut next = cluster.restart(true, &REPLICAS);
    next.run_with(&REPLICAS);
    // Replicas hold it: the version is computed from names and digests.
    assert_eq!(next.published("default").unwrap().version(), version);
    assert_eq!(published(&next), [""]);
    assert_eq!(next.world.routed("a"), Some(1));
    check(&mut next, Some("hunter2"));
    let action = next.only_action();
    next.perform(action);
    assert_eq!(vet(&mut next, "hunter2").generation, 2);
    next.run_with(&REPLICAS);
    assert_eq!(next.world.routed("a"), Some(2));
    assert_eq!(published(&next), [r#"{"token":"hunter2"}"#]);
}

#[test]
fn policy_must_not_read_the_keys_of_the_control_plane() {
    let mut cluster = Cluster::with_replicas(&REPLICAS);
    cluster.put_policy("a", |spec| {
        let reference = json!({"name": "assent-ca", "key": "ca.key"});
        spec["settingsFrom"] = json!([{"secretKeyRef": reference, "path": "key"}]);
    });
    assert!(cluster.run().is_empty());
    assert_eq!(cluster.condition("a", "Accepted"), "False Invalid");
    let message = cluster.message("a", "Accepted");
    assert!(
        message.contains("belongs to the control plane"),
        "{message}"
    );
}
