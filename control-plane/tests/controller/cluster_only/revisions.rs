//! PolicyRevisions that somebody else wrote or damaged.

use assent_api::parse::Rollback;
use assent_controller::Kind;
use serde_json::{Value, json};

use super::Cluster;
use crate::{
    cluster::{NAMESPACE, uid},
    world::World as _,
};

const REPLICAS: [&str; 2] = ["r-0", "r-1"];

fn revision_of(cluster: &Cluster, generation: i64) -> Value {
    let names = cluster.world.names(Kind::Revisions).into_iter();
    let mut objects = names.filter_map(|name| cluster.world.object(Kind::Revisions, name));
    objects
        .find(|object| object["spec"]["generation"] == generation)
        .unwrap()
}

/// The settings of the revision that evaluators serve.
fn served(cluster: &Cluster) -> Value {
    let rollout = cluster.controller.plane().rollout_of(&cluster.id("a"));
    let active = rollout.unwrap().active().unwrap();
    serde_json::from_slice(&active.content.settings_json).unwrap()
}

#[test]
fn damaged_revision_affects_only_itself() {
    let mut cluster = Cluster::enforced(&REPLICAS, 2);
    let damaged = revision_of(&cluster, 1);
    let path = format!(
        "{NAMESPACE}/{}",
        damaged["metadata"]["name"].as_str().unwrap()
    );
    cluster.edit(Kind::Revisions, &path, |object| {
        object["spec"]["settings"] = r#"{"n":666}"#.into();
    });
    let mut next = cluster.restart(true, &REPLICAS);
    next.run_with(&REPLICAS);
    assert_eq!(next.condition("a", "Enforced"), "True Enforced");
    // It is no target either.
    next.roll_back("a", Rollback::Generation(1), 1);
    next.run();
    assert!(next.answers[&1].is_err());
}

/// The tenant of another namespace claims that the content of generation 1 is generation 2 of
/// the cluster-wide policy. Names before and after the control plane's namespace: the result
/// must not depend on the order of objects.
#[test]
fn forged_revision_in_another_namespace_is_ignored() {
    for namespace in ["aaa", "zzz"] {
        let mut cluster = Cluster::enforced(&REPLICAS, 2);
        let known = |cluster: &Cluster| {
            let id = cluster.id("a");
            let own = cluster.controller.objects().revisions(&id.key, &id.uid);
            own.count()
        };
        let before = known(&cluster);
        let mut forged = revision_of(&cluster, 1);
        let real = revision_of(&cluster, 2);
        forged["metadata"] = real["metadata"].clone();
        forged["metadata"]["namespace"] = namespace.into();
        forged["metadata"]["uid"] = uid("forged").into();
        forged["spec"]["generation"] = 2.into();
        forged["status"] = json!({ "phase": "Active" });
        cluster.apply(Kind::Revisions, forged);
        cluster.controller.resync(cluster.now());
        assert_eq!(cluster.run(), Vec::<String>::new(), "{namespace}");
        assert_eq!(known(&cluster), before, "{namespace}");
        let mut next = cluster.restart(true, &REPLICAS);
        assert_eq!(
            next.run_with(&REPLICAS),
            Vec::<String>::new(),
            "{namespace}"
        );
        assert_eq!(served(&next), json!({ "n": 2 }), "{namespace}");
        assert_eq!(known(&next), before, "{namespace}");
        next.roll_back("a", Rollback::Generation(2), 1);
        next.run_with(&REPLICAS);
        assert_eq!(next.world.spec("a").unwrap()["settings"], json!({ "n": 2 }));
    }
}

/// In the right namespace, but of an earlier policy object of that name.
#[test]
fn revision_of_an_earlier_policy_object_is_ignored() {
    let mut cluster = Cluster::enforced(&REPLICAS, 1);
    let old = revision_of(&cluster, 1);
    cluster.delete_policy("a");
    cluster.run_with(&REPLICAS);
    // The garbage collector has not come yet.
    cluster.apply(Kind::Revisions, old);
    cluster.put_policy("a", |_| {});
    let done = cluster.run_with(&REPLICAS);
    assert_eq!(done.first().unwrap(), "vet a 1");
    assert_eq!(served(&cluster), json!({}));
}
