#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use assent_core::{
    Digest, Mode, Policy, PolicyKey, RevisionId, Route, RouteState,
    policy::{Content, ContextResource, HeaderMatch, Limits, RequestMatch, RequestScope},
    session::Stage,
};
use assent_proto::v1;

use crate::{
    from_proto::{self, PolicyError, UnknownRouteState},
    to_proto,
};

/// A revision in which no field has its default.
fn mk_policy() -> Policy {
    let content = Content {
        module_digest: Digest::of(b"module"),
        abi: "wapc".into(),
        settings_json: b"{\"a\":1}".as_slice().into(),
        settings_salt: b"salt".as_slice().into(),
        mode: Mode::Monitor,
        mutating: true,
        limits: Limits {
            timeout_ms: 7,
            memory_bytes: 8,
        },
        context_resources: vec![ContextResource {
            api_version: "v1".into(),
            kind: "Pod".into(),
            fields: vec!["spec.nodeName".into()],
            namespaces: vec!["a".into()],
            label_selector: "app=x".into(),
        }],
        host_capabilities: vec!["oci/manifest".into()],
        message: "no".into(),
        entrypoint: "main/violation".into(),
        requests: Some(Arc::new(RequestScope {
            matches: vec![RequestMatch {
                hosts: vec!["*.example.com".into()],
                paths: vec!["/a".into()],
                path_prefixes: vec!["/b".into()],
                methods: vec!["GET".into()],
                headers: vec![HeaderMatch {
                    name: "x-a".into(),
                    exact: Some(String::new()),
                }],
            }],
            order: 7,
            reads_body: false,
        })),
    };
    let key = PolicyKey::cluster("a");
    Policy::new(key, 3, "5f2a9c1e-0000-4000-8000-000000000000", content, 9)
}

fn read(policy: v1::Policy) -> Result<Policy, PolicyError> {
    let digest = policy.content_digest.parse().unwrap();
    from_proto::policy(policy, digest)
}

#[test]
fn revision_survives_the_wire() {
    let policy = mk_policy();
    assert_eq!(read(to_proto::policy(&policy)), Ok(policy));
}

#[test]
fn settings_from_secrets_are_withheld_with_their_salt() {
    let policy = mk_policy();
    let withheld = to_proto::withheld_policy(&policy);
    assert!(withheld.settings_json.is_empty() && withheld.settings_salt.is_empty());
    // A version is computed from names and content digests: it stays the same.
    assert_eq!(
        withheld.content_digest,
        to_proto::policy(&policy).content_digest
    );
    assert_eq!(read(withheld), Err(PolicyError::SettingsWithheld));
    let mut plain = policy;
    plain.content.settings_salt = [].into();
    assert_eq!(to_proto::withheld_policy(&plain), to_proto::policy(&plain));
}

#[test]
fn routes_survive_the_wire() {
    let revision = RevisionId::from_wire("cluster/a/1-5f2a9c1e");
    for state in [
        RouteState::Active,
        RouteState::Candidate,
        RouteState::Retired,
    ] {
        let route = Route::of(&revision, state);
        let written = to_proto::route(&route);
        // The version covers the number of the state.
        assert_eq!(written.state, i32::from(state.number()));
        assert_eq!(from_proto::route(written), Ok(route));
    }
}

#[test]
fn stages_survive_the_wire() {
    for stage in Stage::ALL {
        assert_eq!(from_proto::stage(to_proto::stage(stage)), stage);
    }
}

#[test]
fn unknown_values_are_errors() {
    let mut policy = to_proto::policy(&mk_policy());
    policy.mode = 7;
    assert_eq!(read(policy), Err(PolicyError::Mode(7)));
    let mut policy = to_proto::policy(&mk_policy());
    policy.policy = "cluster/../etc".into();
    assert_eq!(
        read(policy),
        Err(PolicyError::Name("cluster/../etc".into()))
    );
    let mut policy = to_proto::policy(&mk_policy());
    policy.module_digest = "md5:1".into();
    assert!(matches!(read(policy), Err(PolicyError::ModuleDigest(_))));
    let route = v1::Route {
        path: "p".into(),
        ..v1::Route::default()
    };
    let unknown = UnknownRouteState {
        path: "p".into(),
        state: 0,
    };
    assert_eq!(from_proto::route(route), Err(unknown));
}

#[test]
fn limit_of_zero_is_the_default() {
    let read_limits = |timeout_ms, memory_bytes| {
        let mut policy = to_proto::policy(&mk_policy());
        policy.limits = Some(v1::EvaluationLimits {
            timeout_ms,
            memory_bytes,
        });
        read(policy).unwrap().content.limits
    };
    let default = Limits::default();
    assert_eq!(read_limits(0, 0), default);
    let kept = Limits {
        timeout_ms: 7,
        ..default
    };
    assert_eq!(read_limits(7, 0), kept);
}
