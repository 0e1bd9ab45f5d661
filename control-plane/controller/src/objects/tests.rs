#![allow(clippy::unwrap_used)]

use super::*;

mod model;

use model::{Generator, Model};

fn mk_meta(namespace: &str, name: &str, uid: &str, version: u64) -> Meta {
    Meta {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
        resource_version: version.to_string(),
        generation: 1,
        ..Meta::default()
    }
}

fn mk_policy(name: &str, server: &str, uid: &str, version: u64) -> Object<()> {
    Object::Policy(Box::new(PolicyObject {
        meta: mk_meta("", name, uid, version),
        key: PolicyKey::cluster(name),
        parsed: Err("not parsed".into()),
        server: server.into(),
        rollback: None,
        pinned: None,
        problem: None,
        status: None,
    }))
}

fn mk_server(name: &str, uid: &str, version: u64) -> Object<()> {
    Object::Server(Box::new(ServerObject {
        meta: mk_meta("", name, uid, version),
        parsed: Ok(None),
        status: None,
    }))
}

fn mk_revision(name: &str, policy: Option<(&str, &str)>, uid: &str, version: u64) -> Object<()> {
    Object::Revision(Box::new(RevisionObject {
        meta: mk_meta("assent-system", name, uid, version),
        key: policy.map(|(name, _)| PolicyKey::cluster(name)),
        policy_uid: policy.map_or_else(String::new, |(_, uid)| uid.into()),
        spec: None,
        policy: Err("not restored".into()),
        phase: assent_api::revision::Phase::Candidate,
    }))
}

fn mk_route(kind: Kind, name: &str, policy: &str, uid: &str, version: u64) -> Object<()> {
    Object::Route(Box::new(RouteObject {
        meta: mk_meta("", name, uid, version),
        kind,
        key: PolicyKey::cluster(policy),
        uid: None,
        revision: None,
        resolved: None,
        confirms: false,
        existing: (),
    }))
}

fn mk_pod(name: &str, server: &str, owner: &str, uid: &str, version: u64) -> Object<()> {
    Object::Pod(Box::new(PodObject {
        meta: mk_meta("assent-system", name, uid, version),
        server: server.into(),
        owner: Some(owner.into()),
        ready: true,
        injected: true,
        hash: None,
        template: None,
        ip: None,
        identity: String::new(),
    }))
}

fn mk_set(name: &str, server: &str, owner: &str, uid: &str, version: u64) -> Object<()> {
    Object::Set(Box::new(SetObject {
        meta: mk_meta("assent-system", name, uid, version),
        server: server.into(),
        owner: Some(owner.into()),
        replicas: 1,
        ready: 1,
        hash: None,
        template: None,
    }))
}

fn mk_service(name: &str, server: &str, uid: &str, version: u64) -> Object<()> {
    let meta = mk_meta("assent-system", name, uid, version);
    Object::Service(Box::new(meta), server.into())
}

fn mk_namespace(name: &str, team: &str, uid: &str, version: u64) -> Object<()> {
    Object::Namespace(Box::new(NamespaceObject {
        meta: mk_meta("", name, uid, version),
        labels: [("team".to_owned(), team.to_owned())].into(),
    }))
}

fn mk_tenant_policy(name: &str, created: i64, deleting: bool, version: u64) -> Object<()> {
    let Object::Policy(mut policy) = mk_policy(name, "s", name, version) else {
        unreachable!("it is a policy");
    };
    policy.key = PolicyKey::namespaced("shop", name);
    policy.meta.created = Some(jiff::Timestamp::from_second(created).unwrap());
    policy.meta.deleting = deleting;
    Object::Policy(policy)
}

fn reference(kind: Kind, namespace: &str, name: &str, uid: &str) -> ObjectRef {
    ObjectRef {
        kind,
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
    }
}

/// Every index answers what a scan of all objects would, and whatever changed is reported.
#[test]
fn indexes_agree_with_a_scan_of_all_objects() {
    for seed in 0..40 {
        let mut generator = Generator::new(seed);
        let mut objects = Objects::default();
        let mut model = Model::default();
        for step in 0..400 {
            let change = generator.change();
            let words = format!("seed {seed}, step {step}: {change:?}");
            let before = model.groups();
            let affected = objects.apply(change.clone());
            model.apply(change);
            let after = model.groups();
            assert_eq!(model::groups_of(&objects), after, "{words}");
            model.check_names(&objects, &words);
            for (group, content) in before.iter().chain(&after) {
                let is_same = before.get(group) == after.get(group);
                assert!(
                    is_same || affected.contains(group),
                    "{words}\nmust affect {group:?}: {content:?}"
                );
            }
        }
    }
}

#[test]
fn older_state_is_ignored() {
    let mut objects = Objects::default();
    assert_eq!(objects.insert(mk_server("s", "1", 7)).len(), 1);
    assert!(objects.insert(mk_server("s", "1", 6)).is_empty());
    assert_eq!(objects.server("s").unwrap().meta.resource_version, "7");
    // Another object of that name may have any version.
    assert_eq!(objects.insert(mk_server("s", "2", 6)).len(), 1);
    assert_eq!(objects.server("s").unwrap().meta.uid, "2");
}

/// The response to a write or a list arrives after the watch has reported the deletion.
#[test]
fn late_response_does_not_restore_a_deleted_object() {
    let mut objects = Objects::default();
    objects.apply(Change::Applied(mk_server("a", "uid-1", 1)));
    objects.apply(Change::Applied(mk_pod("a-0", "a", "set", "uid-2", 2)));
    let gone = [
        reference(Kind::Servers, "", "a", "uid-1"),
        reference(Kind::Pods, "assent-system", "a-0", "uid-2"),
    ];
    for gone in gone {
        objects.apply(Change::Deleted(gone));
    }
    assert_eq!(objects.insert(mk_server("a", "uid-1", 1)), []);
    assert_eq!(objects.insert(mk_pod("a-0", "a", "set", "uid-2", 2)), []);
    assert!(objects.server("a").is_none());
    assert_eq!(objects.pods("a").count(), 0);
    // Nor does it replace another object of that name.
    objects.apply(Change::Applied(mk_server("a", "uid-3", 5)));
    assert_eq!(objects.insert(mk_server("a", "uid-1", 4)), []);
    assert_eq!(objects.server("a").unwrap().meta.uid, "uid-3");
}

/// A list that was older than the object removed it; the watch that follows is right.
#[test]
fn watch_restores_an_object_that_was_taken_for_deleted() {
    let mut objects = Objects::default();
    objects.apply(Change::Deleted(reference(Kind::Servers, "", "a", "uid-1")));
    objects.apply(Change::Applied(mk_server("a", "uid-1", 1)));
    assert!(objects.server("a").is_some());
    assert_eq!(objects.insert(mk_server("a", "uid-1", 2)).len(), 1);
}

/// Standalone mode derives uids from names, and performs its own writes at once.
#[test]
fn object_without_a_version_can_be_created_again() {
    let mut objects = Objects::<()>::default();
    let mk = || {
        let Object::Server(mut server) = mk_server("a", "a", 1) else {
            panic!("it must be a server");
        };
        server.meta.resource_version.clear();
        Object::Server(server)
    };
    objects.apply(Change::Applied(mk()));
    objects.apply(Change::Deleted(reference(Kind::Servers, "", "a", "a")));
    assert_eq!(objects.insert(mk()).len(), 1);
}

#[test]
fn deletion_of_an_earlier_object_keeps_the_present_one() {
    let mut objects = Objects::default();
    objects.insert(mk_policy("a", "s", "2", 7));
    let earlier = reference(Kind::ClusterPolicies, "", "a", "1");
    assert!(objects.remove(&earlier).is_empty());
    assert_eq!(objects.policies_of("s").count(), 1);
    let present = reference(Kind::ClusterPolicies, "", "a", "2");
    assert_eq!(objects.remove(&present).len(), 1);
    assert_eq!(objects.policies_of("s").count(), 0);
}

#[test]
fn route_that_names_another_policy_leaves_the_first() {
    let mut objects = Objects::default();
    objects.insert(mk_route(Kind::Validating, "w", "a", "1", 1));
    let affected = objects.insert(mk_route(Kind::Validating, "w", "b", "1", 2));
    let (a, b) = (PolicyKey::cluster("a"), PolicyKey::cluster("b"));
    assert_eq!(
        affected,
        [Affected::Route(a.clone()), Affected::Route(b.clone())]
    );
    assert_eq!(objects.routes(&a).count(), 0);
    assert_eq!(objects.routes(&b).count(), 1);
}

#[test]
fn revision_that_no_longer_belongs_to_a_policy_is_removed() {
    let mut objects = Objects::default();
    objects.insert(mk_revision("a-1", Some(("a", "uid")), "1", 1));
    objects.insert(mk_revision("a-1", None, "2", 2));
    assert_eq!(objects.all_revisions().count(), 0);
}

#[test]
fn set_that_the_server_owns_is_its_set() {
    let mut objects = Objects::default();
    objects.insert(mk_server("s", "server uid", 1));
    objects.insert(mk_set("a-foreign", "s", "somebody", "1", 1));
    objects.insert(mk_set("own", "s", "server uid", "2", 2));
    assert_eq!(objects.set("s").unwrap().meta.name, "own");
    objects.insert(mk_pod("p", "s", "2", "3", 3));
    assert_eq!(objects.members("s").count(), 1);
}

#[test]
fn kinds_count_as_listed_one_by_one() {
    let mut objects: Objects<()> = Objects::default();
    objects.insert(mk_policy("a", "s", "1", 1));
    assert!(!objects.is_listed(&[Kind::ClusterPolicies]));
    objects.apply(Change::Listed(Kind::ClusterPolicies, Vec::new()));
    assert!(objects.is_listed(&[Kind::ClusterPolicies]));
    assert!(!objects.is_listed(&[Kind::ClusterPolicies, Kind::Servers]));
    assert_eq!(objects.policies().count(), 0);
}

#[test]
fn policies_of_a_namespace_are_ordered_by_age() {
    let mut objects = Objects::default();
    for (name, created) in [("a", 30), ("b", 10), ("d", 20), ("c", 20)] {
        objects.insert(mk_tenant_policy(name, created, false, 1));
    }
    let names = |objects: &Objects<()>| {
        let keys = objects.policies_in("shop");
        keys.map(|k| k.name().to_owned()).collect::<String>()
    };
    assert_eq!(names(&objects), "bcda");
    assert_eq!(objects.count_policies_in("shop"), 4);
    // One that is being deleted no longer counts, and neither does one that is gone.
    objects.insert(mk_tenant_policy("c", 20, true, 2));
    assert_eq!(names(&objects), "bda");
    let gone = policy_key(Kind::Policies, "shop", "b").unwrap();
    objects.remove(&reference(Kind::Policies, "shop", gone.name(), ""));
    assert_eq!(names(&objects), "da");
    // Created again, it is young.
    objects.insert(mk_tenant_policy("b", 40, false, 3));
    assert_eq!(names(&objects), "dab");
}

#[test]
fn only_labels_of_a_namespace_matter() {
    let mut objects = Objects::default();
    let affected = [Affected::Namespace("shop".into())];
    assert_eq!(objects.insert(mk_namespace("shop", "a", "1", 1)), affected);
    assert!(objects.insert(mk_namespace("shop", "a", "1", 2)).is_empty());
    assert_eq!(objects.insert(mk_namespace("shop", "b", "1", 3)), affected);
    assert!(objects.insert(mk_namespace("shop", "a", "1", 2)).is_empty());
    assert_eq!(objects.namespace_labels("shop").unwrap()["team"], "b");
}
