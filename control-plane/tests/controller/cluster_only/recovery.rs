//! Revisions that are served, and whose objects are deleted or lost.

use assent_controller::{Failure, Kind};
use assent_core::Version;
use serde_json::{Value, json};

use super::Cluster;
use crate::{
    cluster::{NAMESPACE, uid, webhook_name},
    harness::{MODULE, settings},
    world::World as _,
};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

/// The path of the object that stores a generation of `a`.
fn path(cluster: &Cluster, generation: i64) -> String {
    let uid = cluster.id("a").uid;
    format!("{NAMESPACE}/a-{generation}-{}", &uid[..8])
}

fn object(cluster: &Cluster, generation: i64) -> Option<Value> {
    let path = path(cluster, generation);
    cluster.world.object(Kind::Revisions, &path)
}

fn version(cluster: &Cluster) -> Option<Version> {
    cluster.published("default").map(|s| s.version())
}

#[test]
fn deleted_revision_is_kept_while_it_is_served() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.events();
    let path = path(&cluster, 1);
    cluster.cluster(|world| world.delete(Kind::Revisions, &path));
    assert_eq!(cluster.run(), Vec::<String>::new());
    assert_eq!(cluster.events(), ["a RevisionKept"]);
    assert!(object(&cluster, 1).is_some());
    // The next process keeps it too.
    let mut next = cluster.restart(true, &REPLICAS);
    assert_eq!(next.run_with(&REPLICAS), Vec::<String>::new());
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
    // It goes when nobody needs it any more.
    next.put_policy("a", |spec| settings(spec, 2));
    let done = next.run_with(&REPLICAS);
    let name = path.rsplit('/').next().unwrap();
    assert_eq!(*done.last().unwrap(), format!("remove finalizer of {name}"));
    assert!(object(&next, 1).is_none());
    assert_eq!(next.world.routed("a"), Some(2));
}

#[test]
fn lost_revision_is_stored_again() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.events();
    let before = object(&cluster, 1).unwrap();
    let published = version(&cluster);
    let path = path(&cluster, 1);
    cluster.gone(Kind::Revisions, &path);
    assert_eq!(cluster.run(), ["restore a 1", "a 1 is Active"]);
    assert_eq!(object(&cluster, 1).unwrap()["spec"], before["spec"]);
    assert_eq!(cluster.world.phases("a"), ["1 Active"]);
    assert_eq!(version(&cluster), published);
    assert_eq!(cluster.events(), ["a RevisionRestored"]);
}

/// Somebody removes the finalizer and the owner: it is no longer the policy's, and replaced.
#[test]
fn revision_that_lost_its_owner_is_replaced() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    let path = path(&cluster, 1);
    cluster.edit(Kind::Revisions, &path, |object| {
        object["metadata"]["ownerReferences"] = json!([]);
    });
    assert_eq!(cluster.controller.objects().foreign_revisions(), 1);
    assert_eq!(cluster.run(), ["restore a 1", "a 1 is Active"]);
    assert_eq!(cluster.controller.objects().foreign_revisions(), 0);
    cluster.edit(Kind::Revisions, &path, |object| {
        object["metadata"]["finalizers"] = json!([]);
    });
    let name = path.rsplit('/').next().unwrap();
    assert_eq!(cluster.run(), [format!("add finalizer to {name}")]);
}

#[test]
fn candidate_that_is_lost_before_the_flip_is_stored_again() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    cluster.put_policy("a", |spec| settings(spec, 2));
    cluster.run();
    let path = path(&cluster, 2);
    cluster.gone(Kind::Revisions, &path);
    assert_eq!(cluster.run(), ["restore a 2"]);
    let done = cluster.run_with(&REPLICAS);
    assert_eq!(done[..2], ["check replicas for a 2", "flip a 2"]);
}

/// While nobody leads, the object goes and the module's host too.
#[test]
fn next_leader_makes_a_lost_revision_again() {
    let mut cluster = Cluster::enforced(&REPLICAS, 2);
    let before = object(&cluster, 2).unwrap();
    let published = version(&cluster);
    let path = path(&cluster, 2);
    cluster.world.gone(Kind::Revisions, &path);
    let mut next = cluster.restart(false, &REPLICAS);
    let fetch = format!("fetch {MODULE}");
    assert_eq!(next.run(), ["restore a 2", &*fetch, "a 2 is Active"]);
    assert_eq!(object(&next, 2).unwrap()["spec"], before["spec"]);
    assert_eq!(version(&next), published);
    assert!(next.events().contains(&"a RevisionRestored".to_owned()));
}

/// The object that is found is not the one that the webhook was written for.
#[test]
fn revision_with_other_content_than_its_webhook_records_is_replaced() {
    let mut cluster = Cluster::enforced(&REPLICAS, 2);
    let before = object(&cluster, 2).unwrap();
    let published = version(&cluster);
    let mut forged = before.clone();
    forged["spec"] = object(&cluster, 1).unwrap()["spec"].clone();
    forged["spec"]["generation"] = 2.into();
    forged["metadata"]["uid"] = uid("forged").into();
    cluster.world.store(Kind::Revisions, forged);
    let mut next = cluster.restart(true, &REPLICAS);
    assert_eq!(next.run_with(&REPLICAS), ["restore a 2", "a 2 is Active"]);
    assert_eq!(object(&next, 2).unwrap()["spec"], before["spec"]);
    assert_eq!(version(&next), published);
}

/// The policy was edited since, so that the lost revision cannot be made again.
fn lost_for_good() -> (Cluster, Option<Version>) {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    let published = version(&cluster);
    let path = path(&cluster, 1);
    cluster.put_policy("a", |spec| settings(spec, 2));
    let job = cluster.only_vet();
    cluster.vetted(&job, Err(Failure::invalid("no")));
    assert_eq!(cluster.run(), Vec::<String>::new());
    cluster.world.gone(Kind::Revisions, &path);
    (cluster, published)
}

#[test]
fn revision_that_is_lost_for_good_stays_announced() {
    let (cluster, published) = lost_for_good();
    let mut next = cluster.restart(true, &REPLICAS);
    let job = next.only_vet();
    next.vetted(&job, Err(Failure::invalid("no")));
    assert_eq!(next.run_with(&REPLICAS), Vec::<String>::new());
    // The version is the same: replicas are told to keep what they have.
    assert_eq!(version(&next), published);
    assert_eq!(next.world.routed("a"), Some(1));
    assert!(next.events().contains(&"a RevisionLost".to_owned()));
    let id = next.id("a");
    let status = next.controller.policy_status(next.now(), &id).unwrap();
    assert_eq!(status.active.map(|a| a.generation), Some(1));
    // Edited again, the policy has a revision that everybody can load.
    next.put_policy("a", |spec| settings(spec, 3));
    next.run_with(&REPLICAS);
    assert_eq!(next.world.routed("a"), Some(3));
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
    let snapshot = next.published("default").unwrap();
    assert!(snapshot.policies().all(|p| p.has_content()));
}

/// Nothing but the name is known: what replicas hold must not be replaced.
#[test]
fn nothing_is_published_while_a_webhook_names_an_unknown_revision() {
    let (mut cluster, _) = lost_for_good();
    let webhook = webhook_name("a");
    cluster.world.edit(Kind::Validating, &webhook, |object| {
        object["metadata"]["annotations"]["policies.assent.dev/revision"] = "damaged".into();
    });
    let mut next = cluster.restart(true, &REPLICAS);
    next.run();
    assert_eq!(version(&next), None);
    assert!(next.events().contains(&"a RevisionLost".to_owned()));
    next.put_policy("b", |_| {});
    next.run();
    assert_eq!(version(&next), None);
    assert_eq!(next.world.routed("a"), Some(1));
    // Whoever gives the revision up deletes its webhook.
    next.gone(Kind::Validating, &webhook);
    next.run_with(&REPLICAS);
    assert_eq!(next.world.routed("a"), Some(2));
    assert_eq!(next.world.routed("b"), Some(1));
}

#[test]
fn deleted_policy_holds_no_revision_back() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    let mut revision = object(&cluster, 1).unwrap();
    cluster.delete_policy("a");
    cluster.run_with(&REPLICAS);
    // The garbage collector comes after the policy is gone.
    revision["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    let name = revision["metadata"]["name"].as_str().unwrap().to_owned();
    cluster.apply(Kind::Revisions, revision.clone());
    assert_eq!(cluster.run(), [format!("remove finalizer of {name}")]);
    assert!(cluster.world.names(Kind::Revisions).is_empty());
    // Nor does anybody who leads later, or a revision of no policy at all.
    revision["spec"]["policyRef"]["kind"] = "Unknown".into();
    cluster.world.store(Kind::Revisions, revision);
    let mut next = cluster.restart(true, &REPLICAS);
    assert_eq!(next.run(), [format!("remove finalizer of {name}")]);
}
