//! Webhook configurations of policies.

use assent_e2e::kube::with_temp_ns;
use assent_k8s::webhook::{Error, Writer, differs, read};

use super::*;

fn by_service(namespace: &str) -> WebhookEndpoint {
    WebhookEndpoint::Service {
        namespace: namespace.to_owned(),
        name: "policy-server-default".to_owned(),
        port: 443,
    }
}

/// A policy with every field set. Its selector matches nothing of other tests, which share
/// the API server.
fn everything(mutating: bool) -> Value {
    let condition = |i| json!({"name": format!("c{i}"), "expression": format!("{i} >= 0 // {i}")});
    let conditions: Vec<Value> = (0..64).map(condition).collect();
    json!({
        "module": "registry://example.com/module:v1",
        "rules": [{
            "apiGroups": ["", "apps"], "apiVersions": ["*"], "resources": ["pods", "*/scale"],
            "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
        }],
        "mutating": mutating,
        "failurePolicy": "Ignore",
        "matchPolicy": "Exact",
        "matchConditions": conditions,
        "objectSelector": {"matchLabels": {"assent-e2e": "writers"}},
        "namespaceSelector": {
            "matchExpressions": [{"key": "env", "operator": "In", "values": ["prod"]}],
        },
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 7,
    })
}

fn plain() -> Value {
    json!({
        "module": "registry://example.com/module:v1",
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"],
            "operations": ["*"],
        }],
    })
}

#[tokio::test]
async fn written_webhooks_read_back_unchanged() {
    with_temp_ns(async |kubectl| {
        let (client, defaults) = (client(&kubectl).await, defaults(&kubectl).await);
        let (writer, namespace) = (Writer::new(client.clone()), kubectl.namespace());
        let cluster = PolicyKey::cluster(&format!("{namespace}-everything"));
        let own = PolicyKey::namespaced("elsewhere", "plain");
        let policies = [
            policy(&cluster, &everything(false)),
            policy(&cluster, &everything(true)),
            policy(&own, &plain()),
        ];
        let url = WebhookEndpoint::Url("https://127.0.0.1:8443".to_owned());
        for (policy, endpoint) in
            policies
                .iter()
                .zip([by_service(namespace), by_service(namespace), url])
        {
            let desired = desired(policy, 12, &endpoint, &defaults);
            let written = writer.create(&desired).await.unwrap();
            let api = configurations(&client, desired.kind());
            let stored = api.get(desired.name()).await.unwrap();
            assert!(!differs(&stored, &desired), "{stored:#?}");
            assert_eq!(stored.metadata.resource_version, written.resource_version);
            let named = read(&stored).unwrap();
            assert_eq!(named.policy, policy.key);
            assert_eq!(named.uid.as_deref(), Some(POLICY_UID));
            let revision = RevisionId::new(&policy.key, 12, POLICY_UID);
            assert_eq!(named.revision, Some(revision));
        }
    })
    .await;
}

#[tokio::test]
async fn flip_is_conditional() {
    with_temp_ns(async |kubectl| {
        let (client, defaults) = (client(&kubectl).await, defaults(&kubectl).await);
        let (writer, namespace) = (Writer::new(client.clone()), kubectl.namespace());
        let key = PolicyKey::cluster(&format!("{namespace}-flip"));
        let policy = policy(&key, &everything(false));
        let at = |generation| desired(&policy, generation, &by_service(namespace), &defaults);
        let created = writer.create(&at(1)).await.unwrap();
        let again = writer.create(&at(1)).await;
        assert!(matches!(again, Err(Error::Exists)), "{again:?}");

        let flipped = writer.update(&created, &at(2)).await.unwrap();
        // Whoever still believes in the first state changes nothing.
        let late = writer.update(&created, &at(1)).await;
        assert!(matches!(late, Err(Error::Conflict)), "{late:?}");
        let api = configurations(&client, Kind::Validating);
        let stored = api.get(at(2).name()).await.unwrap();
        assert!(!differs(&stored, &at(2)));

        // Writing the same again is no change: nobody is woken by it.
        let same = writer.update(&flipped, &at(2)).await.unwrap();
        assert_eq!(same.resource_version, flipped.resource_version);

        let name = at(2).name().to_owned();
        let other = writer.delete(Kind::Validating, &name, "another-life").await;
        assert!(matches!(other, Err(Error::Conflict)), "{other:?}");
        let uid = flipped.uid.clone().unwrap();
        writer.delete(Kind::Validating, &name, &uid).await.unwrap();
        let gone = writer.delete(Kind::Validating, &name, &uid).await;
        assert!(matches!(gone, Err(Error::Gone)), "{gone:?}");
        let gone = writer.update(&flipped, &at(3)).await;
        assert!(
            matches!(gone, Err(Error::Gone | Error::Conflict)),
            "{gone:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn refused_webhook_has_the_api_servers_message() {
    with_temp_ns(async |kubectl| {
        let (client, defaults) = (client(&kubectl).await, defaults(&kubectl).await);
        let key = PolicyKey::cluster(&format!("{}-refused", kubectl.namespace()));
        let mut spec = everything(false);
        spec["matchConditions"] = json!([{"name": "bad", "expression": "no such thing"}]);
        let desired = desired(&policy(&key, &spec), 1, &by_service("x"), &defaults);
        let refused = Writer::new(client).create(&desired).await;
        let Err(Error::Invalid(message)) = refused else {
            panic!("not refused: {refused:?}");
        };
        assert!(message.contains("no such thing"), "{message}");
    })
    .await;
}
