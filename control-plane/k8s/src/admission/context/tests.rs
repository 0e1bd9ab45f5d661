#![allow(clippy::unwrap_used)]

use assent_api::Options;
use serde_json::{Value, json};

use super::*;

struct Kinds;

impl KindFinder for Kinds {
    fn find(&self, kind: KindRef) -> BoxFuture<'_, Result<Option<String>, String>> {
        Box::pin(async move {
            match kind.kind.as_str() {
                "Ingress" => Ok(Some("ingresses".into())),
                "Secret" => Ok(Some("secrets".into())),
                "Broken" => Err("away".into()),
                _ => Ok(None),
            }
        })
    }
}

fn mk_policy(context: &Value) -> Value {
    json!({
        "apiVersion": assent_api::API_VERSION,
        "kind": "ClusterAdmissionPolicy",
        "metadata": {"name": "p"},
        "spec": {
            "module": "registry://example.com/p:v1",
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "contextAwareResources": context,
        },
    })
}

fn mk_request(new: &Value, old: Option<&Value>) -> Request {
    Request {
        object: mk_policy(new),
        old_object: old.map(mk_policy).unwrap_or_default(),
        operation: match old {
            Some(_) => Operation::Update,
            None => Operation::Create,
        },
        ..Request::default()
    }
}

fn ingress(namespaces: &[&str]) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "namespaces": namespaces})
}

async fn asked(new: &Value, old: Option<&Value>) -> Vec<String> {
    let added = added(&mk_request(new, old), &Options::default());
    let required = required(added, &Kinds).await.unwrap();
    let reviews = required.iter().map(|reading| {
        let review = reading.review(&UserInfo::default());
        let a = review.resource_attributes.unwrap();
        let text = |part: Option<String>| part.unwrap_or_default();
        assert_eq!(a.verb.as_deref(), Some("list"));
        format!(
            "{}.{} {}",
            text(a.resource),
            text(a.group),
            text(a.namespace)
        )
    });
    reviews.collect()
}

#[tokio::test]
async fn author_must_be_allowed_to_list_what_is_declared() {
    let both =
        json!([ingress(&[]), {"apiVersion": "v1", "kind": "Secret", "namespaces": ["b", "a"]}]);
    let wanted = ["ingresses.networking.k8s.io ", "secrets. a", "secrets. b"];
    assert_eq!(asked(&both, None).await, wanted);
}

#[tokio::test]
async fn only_what_is_added_is_asked_for() {
    let one = json!([ingress(&["a"])]);
    let two = json!([ingress(&["a", "b"])]);
    let all = json!([ingress(&[])]);
    let none = Vec::<String>::new();
    assert_eq!(asked(&one, Some(&one)).await, none);
    assert_eq!(asked(&one, Some(&two)).await, none);
    assert_eq!(asked(&one, Some(&all)).await, none);
    assert_eq!(
        asked(&all, Some(&one)).await,
        ["ingresses.networking.k8s.io "]
    );
    assert_eq!(asked(&two, Some(&one)).await.len(), 2);
}

#[tokio::test]
async fn kind_that_is_not_served_needs_the_whole_group() {
    let unknown = json!([{"apiVersion": "example.com/v1", "kind": "Unknown"}]);
    assert_eq!(asked(&unknown, None).await, ["*.example.com "]);
}

#[tokio::test]
async fn kind_that_cannot_be_looked_up_is_an_error() {
    let broken = json!([{"apiVersion": "example.com/v1", "kind": "Broken"}]);
    let added = added(&mk_request(&broken, None), &Options::default());
    assert_eq!(required(added, &Kinds).await, Err("away".to_owned()));
}
