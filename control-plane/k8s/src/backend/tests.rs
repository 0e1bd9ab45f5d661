#![allow(clippy::unwrap_used)]

use assent_api::{API_VERSION, parse, revision::ResolvedRevision};
use assent_core::RevisionId;
use serde_json::json;

use super::*;
use crate::{
    convert::{route, route_kind},
    objects::erase,
};

fn mk_cluster() -> Cluster {
    Cluster {
        defaults: WebhookDefaults {
            namespace: "assent-system".into(),
            namespace_uid: "n".into(),
            ca_bundle: b"bundle".to_vec(),
            excluded_namespaces: Vec::new(),
            service_accounts: Vec::new(),
        },
        base_url: None,
        workload: None,
    }
}

fn mk_policy(mutating: bool) -> Parsed {
    let value = json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": { "name": "a" },
        "spec": {
            "module": "registry://example.com/policy:v1",
            "mutating": mutating,
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["pods"],
            }],
        },
    });
    parse::policy(&value, &parse::Options::default()).unwrap()
}

fn mk_desired(cluster: &Cluster, mutating: bool, generation: i64) -> Vec<Desired> {
    let policy = mk_policy(mutating);
    cluster.desired(&RouteSpec {
        revision: &RevisionId::new(&policy.key, generation, "u"),
        policy: &policy,
        resolved: &ResolvedRevision::default(),
        uid: "u",
        confirmed: true,
    })
}

fn mk_existing(desired: &Desired) -> RouteObject<DynamicObject> {
    let object = match desired {
        Desired::Validating(object) => erase(object.as_ref()),
        Desired::Mutating(object) => erase(object.as_ref()),
    };
    route(route_kind(desired.kind()), object.unwrap()).unwrap()
}

#[test]
fn route_is_current_only_if_it_is_the_desired_one_alone() {
    let mut cluster = mk_cluster();
    let desired = mk_desired(&cluster, false, 1);
    let validating = mk_existing(&desired[0]);
    let both = mk_desired(&cluster, true, 1);
    let (mutating, confirming) = (mk_existing(&both[0]), mk_existing(&both[1]));
    assert!(cluster.is_current(&[&mutating, &confirming], &both));
    assert!(cluster.is_current(&[&confirming, &mutating], &both));
    assert!(!cluster.is_current(&[&mutating], &both));
    assert!(!cluster.is_current(&[&mutating, &validating], &both));
    assert!(cluster.is_current(&[&validating], &desired));
    assert!(!cluster.is_current(&[], &desired));
    assert!(!cluster.is_current(&[&mutating], &desired));
    assert!(!cluster.is_current(&[&validating, &mutating], &desired));
    assert!(!cluster.is_current(&[&validating], &mk_desired(&cluster, false, 2)));
    // Every webhook must trust a new certificate authority.
    cluster.defaults.ca_bundle = b"rotated".to_vec();
    assert!(!cluster.is_current(&[&validating], &mk_desired(&cluster, false, 1)));
}

#[test]
fn requests_go_to_the_service_of_the_policy_server() {
    let mut cluster = mk_cluster();
    let config = |mut desired: Vec<Desired>| {
        let Desired::Validating(object) = desired.remove(0) else {
            panic!("the policy only validates");
        };
        object.webhooks.unwrap().remove(0).client_config
    };
    let service = config(mk_desired(&cluster, false, 1)).service.unwrap();
    assert_eq!(service.name, "policy-server-default");
    assert_eq!(service.namespace, "assent-system");
    assert_eq!(service.path.unwrap(), "/validate/cluster/a/1-u");
    cluster.base_url = Some("https://localhost:9443".into());
    let url = config(mk_desired(&cluster, false, 1)).url.unwrap();
    assert_eq!(url, "https://localhost:9443/validate/cluster/a/1-u");
}
