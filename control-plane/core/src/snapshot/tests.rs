#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::{
    fixtures::{mk_policy, mk_snapshot},
    policy::{
        Content, ContextResource, Limits, Mode, Policy, PolicyKey, RequestMatch, RequestScope,
    },
};

mod sharing;

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().unwrap().iter();
    list.map(|v| v.as_str().unwrap().to_owned()).collect()
}

fn context(text: &str) -> ContextResource {
    let (api_version, kind) = text.rsplit_once('/').unwrap();
    ContextResource {
        api_version: api_version.into(),
        kind: kind.into(),
        ..ContextResource::default()
    }
}

fn narrowed<const F: usize, const N: usize>(
    fields: [&str; F],
    namespaces: [&str; N],
    label_selector: &str,
) -> ContextResource {
    ContextResource {
        fields: fields.map(str::to_owned).into(),
        namespaces: namespaces.map(str::to_owned).into(),
        label_selector: label_selector.into(),
        ..context("v1/Pod")
    }
}

fn content(vector: &Value) -> Content {
    let text = |field: &str| vector[field].as_str().unwrap().to_owned();
    Content {
        module_digest: text("module_digest").parse().unwrap(),
        abi: text("abi"),
        settings_json: text("settings_json").as_bytes().into(),
        settings_salt: [].into(),
        mode: match text("mode").as_str() {
            "MONITOR" => Mode::Monitor,
            _ => Mode::Protect,
        },
        mutating: vector["mutating"].as_bool().unwrap(),
        limits: Limits {
            timeout_ms: vector["timeout_ms"].as_u64().unwrap().try_into().unwrap(),
            memory_bytes: vector["memory_bytes"].as_u64().unwrap(),
        },
        context_resources: strings(&vector["context_resources"])
            .iter()
            .map(|t| context(t))
            .collect(),
        host_capabilities: strings(&vector["host_capabilities"]),
        message: text("message"),
        entrypoint: text("entrypoint"),
        requests: None,
    }
}

#[test]
fn content_digests_are_those_of_the_contract() {
    let vectors = vectors();
    for vector in vectors["policies"].as_array().unwrap() {
        let expect = vector["content_digest"].as_str().unwrap();
        assert_eq!(content(vector).digest().to_string(), expect);
    }
}

#[test]
fn versions_are_those_of_the_contract() {
    let vectors = vectors();
    let contents: Vec<Content> = vectors["policies"]
        .as_array()
        .unwrap()
        .iter()
        .map(content)
        .collect();
    for vector in vectors["snapshots"].as_array().unwrap() {
        let policies = vector["policies"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(id, digest)| {
                let digest = digest.as_str().unwrap();
                let same = contents.iter().find(|c| c.digest().to_string() == digest);
                let key = PolicyKey::cluster("any");
                let mut policy = Policy::new(key, 1, "any", same.unwrap().clone(), 0);
                policy.revision = RevisionId::from_wire(id);
                Arc::new(policy)
            });
        let routes = vector["routes"].as_array().unwrap().iter().map(|route| {
            Arc::new(Route {
                path: route["path"].as_str().unwrap().into(),
                revisions: strings(&route["revisions"])
                    .iter()
                    .map(|id| RevisionId::from_wire(id))
                    .collect(),
                state: match route["state"].as_str().unwrap() {
                    "ACTIVE" => RouteState::Active,
                    "CANDIDATE" => RouteState::Candidate,
                    _ => RouteState::Retired,
                },
            })
        });
        let snapshot = Snapshot::new(policies, routes);
        assert_eq!(
            snapshot.version().to_string(),
            vector["version"].as_str().unwrap()
        );
    }
}

fn scope(change: fn(&mut RequestScope)) -> RequestScope {
    let mut scope = RequestScope::default();
    change(&mut scope);
    scope
}

#[test]
fn every_field_of_the_content_makes_another_digest() {
    let base = content(&vectors()["policies"][0]);
    let changes: [fn(&mut Content); 17] = [
        |c| c.module_digest = Digest::of(b"other"),
        |c| c.abi = "opa".into(),
        |c| c.settings_json = b"{\"a\":1}".as_slice().into(),
        |c| c.mode = Mode::Monitor,
        |c| c.mutating = true,
        |c| c.limits.timeout_ms += 1,
        |c| c.limits.memory_bytes += 1,
        |c| c.context_resources.push(context("v1/Pod")),
        |c| c.context_resources.push(narrowed(["spec"], [], "")),
        |c| c.context_resources.push(narrowed([], ["spec"], "")),
        |c| c.context_resources.push(narrowed([], [], "spec")),
        |c| c.message.push('x'),
        |c| c.entrypoint.push('x'),
        |c| c.requests = Some(RequestScope::default().into()),
        |c| c.requests = Some(scope(|s| s.order = 1).into()),
        |c| c.requests = Some(scope(|s| s.reads_body = false).into()),
        |c| c.requests = Some(scope(|s| s.matches.push(RequestMatch::default())).into()),
    ];
    let mut seen = vec![base.digest()];
    for change in changes {
        let mut changed = base.clone();
        change(&mut changed);
        assert!(!seen.contains(&changed.digest()), "{changed:?}");
        seen.push(changed.digest());
    }
}

#[test]
fn a_route_s_state_is_part_of_the_version_but_order_is_not() {
    let (a, b) = (mk_policy("a", 1), mk_policy("b", 1));
    let route = |p: &Arc<Policy>, state| Arc::new(Route::of(&p.revision, state));
    let one = Snapshot::new(
        [a.clone(), b.clone()],
        [route(&a, RouteState::Active), route(&b, RouteState::Active)],
    );
    let other = Snapshot::new(
        [b.clone(), a.clone()],
        [route(&b, RouteState::Active), route(&a, RouteState::Active)],
    );
    let flipped = Snapshot::new(
        [a.clone(), b.clone()],
        [
            route(&a, RouteState::Active),
            route(&b, RouteState::Retired),
        ],
    );
    assert_eq!(one.version(), other.version());
    assert_ne!(one.version(), flipped.version());
    let delta = flipped.delta_from(&one);
    assert_eq!(delta.policies.len() + delta.removed_revisions.len(), 0);
    assert_eq!(delta.routes, [route(&b, RouteState::Retired)]);
}

#[test]
fn a_claim_is_answered_with_what_it_lacks() {
    let snapshot = mk_snapshot(&[("a", 1), ("b", 2)]);
    let mut held: BTreeMap<String, Digest> = BTreeMap::new();
    held.insert(
        "cluster/a/1-5f2a9c1e".into(),
        mk_policy("a", 1).content_digest,
    );
    held.insert("cluster/b/2-5f2a9c1e".into(), Digest::of(b"tampered"));
    held.insert("cluster/c/1-5f2a9c1e".into(), Digest::of(b"gone"));
    let delta = snapshot.delta_from_claim(&held);
    assert_eq!(delta.policies, [mk_policy("b", 2)]);
    assert_eq!(
        delta.removed_revisions,
        [RevisionId::from_wire("cluster/c/1-5f2a9c1e")]
    );
    assert_eq!(delta.routes.len(), 2);
}

/// Applies a delta the way a client does.
fn apply(from: &Snapshot, delta: &Delta) -> Snapshot {
    let gone = |p: &&Arc<Policy>| !delta.removed_revisions.contains(&p.revision);
    let policies = from.policies().filter(gone).chain(&delta.policies).cloned();
    let gone = |r: &&Arc<Route>| !delta.removed_routes.contains(&r.path);
    let routes = from.routes().filter(gone).chain(&delta.routes).cloned();
    Snapshot::new(policies, routes)
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let entry = (0..6_u8, 1..4_i64, 0..3_u8);
    proptest::collection::vec(entry, 0..10).prop_map(|entries| {
        let entries: Vec<_> = entries
            .into_iter()
            .map(|(name, generation, state)| {
                let state = match state {
                    0 => RouteState::Active,
                    1 => RouteState::Candidate,
                    _ => RouteState::Retired,
                };
                (mk_policy(&format!("p{name}"), generation), state)
            })
            .collect();
        let routes = entries
            .iter()
            .map(|(p, s)| Arc::new(Route::of(&p.revision, *s)));
        let routes: Vec<_> = routes.collect();
        Snapshot::new(entries.into_iter().map(|(p, _)| p), routes)
    })
}

proptest! {
    #[test]
    fn a_delta_leads_from_any_set_to_any_other(from in any_snapshot(), to in any_snapshot()) {
        let reached = apply(&from, &to.delta_from(&from));
        prop_assert_eq!(&reached, &to);
        prop_assert_eq!(reached.version(), to.version());
    }
}
