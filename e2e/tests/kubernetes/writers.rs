//! What the control plane writes, against a real API server: it is accepted, it reads back as
//! it was written, and it does what it is for.

mod lockout;
mod webhooks;
mod workloads;

use assent_api::{Manifest, Options, Parsed, ParsedServer, parse, revision::ResolvedRevision};
use assent_core::{PolicyKey, RevisionId};
use assent_e2e::kube::Kubectl;
use assent_k8s::webhook::{self, Desired, Kind, WebhookDefaults, WebhookEndpoint};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

const POLICY_UID: &str = "5f2a9c1e-0000-4000-8000-000000000000";

/// A client with the rights of a kubectl.
async fn client(kubectl: &Kubectl) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubectl.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    Client::try_from(config.unwrap()).unwrap()
}

/// The defaults of a control plane in the namespace of a test.
async fn defaults(kubectl: &Kubectl) -> WebhookDefaults {
    let namespace = kubectl.namespace().to_owned();
    let object = kubectl.get(&["namespace", &namespace]).await;
    WebhookDefaults {
        namespace_uid: object["metadata"]["uid"].as_str().unwrap().to_owned(),
        // Any that is valid: nothing is called with it.
        ca_bundle: ca_bundle(),
        excluded_namespaces: Vec::new(),
        service_accounts: vec![format!("system:serviceaccount:{namespace}:assent")],
        namespace,
    }
}

fn ca_bundle() -> Vec<u8> {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.self_signed(&key).unwrap().pem().into_bytes()
}

fn policy(key: &PolicyKey, spec: &Value) -> Parsed {
    parse::spec(key, spec, &Options::default()).unwrap()
}

fn desired(
    policy: &Parsed,
    generation: i64,
    endpoint: &WebhookEndpoint,
    defaults: &WebhookDefaults,
) -> Desired {
    let mut all = webhook::desired(&webhook::Input {
        policy,
        revision: &RevisionId::new(&policy.key, generation, POLICY_UID),
        resolved: &ResolvedRevision::default(),
        uid: POLICY_UID,
        endpoint,
        defaults,
        confirmed: true,
    });
    all.remove(0)
}

/// Configurations of a kind, as the index sees them.
fn configurations(client: &Client, kind: Kind) -> Api<DynamicObject> {
    let kind = match kind {
        Kind::Validating => "ValidatingWebhookConfiguration",
        Kind::Mutating => "MutatingWebhookConfiguration",
    };
    let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk))
}

fn server(name: &str, spec: &Value) -> (Value, ParsedServer) {
    let object = json!({
        "apiVersion": assent_api::API_VERSION, "kind": "PolicyServer",
        "metadata": {"name": name}, "spec": spec,
    });
    match parse::manifest(&object, &Options::default()).unwrap() {
        Manifest::Server(server) => (object, *server),
        other => panic!("not a server: {other:?}"),
    }
}
