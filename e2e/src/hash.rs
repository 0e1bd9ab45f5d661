//! Versions and content digests, computed from the protocol's text and nothing else: what the
//! programs say is compared with this.

use std::collections::BTreeMap;

use assent_proto::v1;
use sha2::{Digest as _, Sha256};

/// Revision -> content digest, path -> route: everything that a version covers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// Content digests by revision.
    pub revisions: BTreeMap<String, String>,
    /// Routes by path.
    pub routes: BTreeMap<String, v1::Route>,
}

/// `sha256:<hex>` of bytes.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// The content digest of a policy as it was sent.
pub fn content_digest(policy: &v1::Policy) -> String {
    let limits = policy.limits.unwrap_or_default();
    let mut bytes = b"assent.policy.v1".to_vec();
    field(&mut bytes, policy.module_digest.as_bytes());
    field(&mut bytes, policy.abi.as_bytes());
    field(&mut bytes, &policy.settings_json);
    bytes.push(u8::try_from(policy.mode).expect("a mode must be a small number"));
    bytes.push(u8::from(policy.mutating));
    bytes.extend(limits.timeout_ms.to_be_bytes());
    bytes.extend(limits.memory_bytes.to_be_bytes());
    let kinds = policy.context_resources.iter();
    list(&mut bytes, kinds.map(declaration));
    let capabilities = policy.host_capabilities.iter();
    list(&mut bytes, capabilities.map(|c| c.clone().into_bytes()));
    field(&mut bytes, policy.message.as_bytes());
    field(&mut bytes, policy.entrypoint.as_bytes());
    if !policy.settings_salt.is_empty() {
        field(&mut bytes, b"settings_salt");
        field(&mut bytes, &policy.settings_salt);
    }
    if let Some(scope) = &policy.requests {
        requests(&mut bytes, scope);
    }
    digest(&bytes)
}

fn requests(bytes: &mut Vec<u8>, scope: &v1::RequestScope) {
    let count = |bytes: &mut Vec<u8>, count: usize| {
        let count = u32::try_from(count).expect("a list must be short");
        bytes.extend(count.to_be_bytes());
    };
    field(bytes, b"requests");
    bytes.extend(scope.order.to_be_bytes());
    bytes.push(u8::from(scope.reads_body));
    count(bytes, scope.r#match.len());
    for entry in &scope.r#match {
        for list in [
            &entry.hosts,
            &entry.paths,
            &entry.path_prefixes,
            &entry.methods,
        ] {
            count(bytes, list.len());
            list.iter().for_each(|item| field(bytes, item.as_bytes()));
        }
        count(bytes, entry.headers.len());
        for header in &entry.headers {
            field(bytes, header.name.as_bytes());
            bytes.push(u8::from(header.exact.is_some()));
            field(
                bytes,
                header.exact.as_deref().unwrap_or_default().as_bytes(),
            );
        }
    }
}

// === impl Held ===

impl Held {
    /// The set of a full response.
    pub fn of(policies: &[v1::Policy], routes: &[v1::Route]) -> Self {
        let revision = |p: &v1::Policy| (p.revision.clone(), p.content_digest.clone());
        Self {
            revisions: policies.iter().map(revision).collect(),
            routes: routes.iter().map(|r| (r.path.clone(), r.clone())).collect(),
        }
    }

    /// Its version.
    pub fn version(&self) -> String {
        let mut bytes = b"assent.snapshot.v1".to_vec();
        count(&mut bytes, self.revisions.len());
        for (revision, content) in &self.revisions {
            field(&mut bytes, revision.as_bytes());
            bytes.extend(raw(content));
        }
        count(&mut bytes, self.routes.len());
        for (path, route) in &self.routes {
            field(&mut bytes, path.as_bytes());
            count(&mut bytes, route.revisions.len());
            for revision in &route.revisions {
                field(&mut bytes, revision.as_bytes());
            }
            bytes.push(u8::try_from(route.state).expect("a state must be a small number"));
        }
        hex(&Sha256::digest(&bytes))
    }
}

fn field(bytes: &mut Vec<u8>, value: &[u8]) {
    count(bytes, value.len());
    bytes.extend(value);
}

fn list(bytes: &mut Vec<u8>, items: impl Iterator<Item = Vec<u8>>) {
    let mut items: Vec<Vec<u8>> = items.collect();
    items.sort();
    count(bytes, items.len());
    for item in items {
        field(bytes, &item);
    }
}

/// Scope and projection are covered only if they are not the default.
fn declaration(resource: &v1::ContextResource) -> Vec<u8> {
    let mut bytes = format!("{}/{}", resource.api_version, resource.kind).into_bytes();
    let lists = [&resource.fields, &resource.namespaces];
    if lists.iter().all(|list| list.is_empty()) && resource.label_selector.is_empty() {
        return bytes;
    }
    bytes.push(0);
    for items in lists {
        list(
            &mut bytes,
            items.iter().map(|item| item.clone().into_bytes()),
        );
    }
    bytes.extend(resource.label_selector.as_bytes());
    bytes
}

fn count(bytes: &mut Vec<u8>, n: usize) {
    bytes.extend(
        u32::try_from(n)
            .expect("a length must fit 32 bits")
            .to_be_bytes(),
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn raw(digest: &str) -> Vec<u8> {
    let hex = digest
        .strip_prefix("sha256:")
        .expect("a digest must have its prefix");
    assert_eq!(hex.len(), 64, "a digest must have 64 digits: {digest}");
    let byte = |n| u8::from_str_radix(&hex[n..n + 2], 16).expect("a digest must be hexadecimal");
    (0..64).step_by(2).map(byte).collect()
}
