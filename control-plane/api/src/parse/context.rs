//! Reads `contextAwareResources`.

use assent_context::{FieldPath, Projection, spec};
use assent_core::policy::{ContextResource, is_dns_subdomain};

use super::{
    reader::{Fields, Node},
    rules,
};
use crate::rules::{ContextAwareResource, MAX_ITEMS};

/// The most kinds of one policy, as in the schema.
const MAX_KINDS: usize = 64;

pub(super) fn read(f: &mut Fields<'_>, namespaced: bool) -> Vec<ContextAwareResource> {
    let Some(node) = f.get("contextAwareResources") else {
        return Vec::new();
    };
    let items = node.items();
    if items.len() > MAX_KINDS {
        node.error(format!("must not have more than {MAX_KINDS} entries"));
    }
    let read = |item: &Node<'_>| resource(item, namespaced);
    let resources: Vec<ContextAwareResource> = items.iter().filter_map(read).collect();
    refuse_ambiguous(&node, &resources);
    resources
}

/// What evaluators get. A namespaced policy reads its own namespace and nothing else.
pub(super) fn resolve(resource: ContextAwareResource, own: Option<&str>) -> ContextResource {
    let selector = resource.label_selector.unwrap_or_default();
    let declared = ContextResource {
        api_version: resource.api_version,
        kind: resource.kind,
        fields: resource.fields,
        namespaces: match own {
            Some(own) => vec![own.to_owned()],
            None => resource.namespaces,
        },
        label_selector: selector.to_string(),
    };
    // What cannot be normalised was reported while it was read, and the policy is refused.
    spec::normalise(&declared).unwrap_or(declared)
}

fn resource(node: &Node<'_>, namespaced: bool) -> Option<ContextAwareResource> {
    let mut f = node.fields();
    let mut text = |name, hint| {
        let node = f.require(name, hint)?;
        let text = node.string()?;
        if text.is_empty() {
            node.error("must not be empty");
        }
        Some(text)
    };
    let api_version = text("apiVersion", "such as \"v1\" or \"apps/v1\"");
    let kind = text("kind", "such as \"Deployment\"");
    let fields = list(&mut f, "fields", check_field);
    let namespaces = namespaces(&mut f, namespaced);
    let label_selector = f.get("labelSelector").map(|node| rules::selector(&node));
    f.close();
    Some(ContextAwareResource {
        api_version: api_version?,
        kind: kind?,
        fields,
        namespaces,
        label_selector,
    })
}

fn namespaces(f: &mut Fields<'_>, namespaced: bool) -> Vec<String> {
    if namespaced && let Some(node) = f.get("namespaces") {
        node.error("is for ClusterAdmissionPolicy only, because an AdmissionPolicy reads its own namespace; remove it");
        return Vec::new();
    }
    list(f, "namespaces", |node, name| {
        if !is_dns_subdomain(name) || name.contains('.') || name.len() > 63 {
            node.error(format!("\"{name}\" is not the name of a namespace"));
        }
    })
}

fn list(f: &mut Fields<'_>, name: &'static str, check: impl Fn(&Node<'_>, &str)) -> Vec<String> {
    let Some(node) = f.get(name) else {
        return Vec::new();
    };
    let items = node.items();
    if items.len() > MAX_ITEMS {
        node.error(format!("must not have more than {MAX_ITEMS} entries"));
    }
    let texts = items.iter().filter_map(|item| {
        let text = item.string()?;
        check(item, &text);
        Some(text)
    });
    texts.collect()
}

fn check_field(node: &Node<'_>, path: &str) {
    match path.parse::<FieldPath>() {
        Err(error) => node.error(error.to_string()),
        Ok(path) if Projection::drops(&path) => node.error("is never replicated; remove it"),
        Ok(_) => {}
    }
}

/// A host call names a kind and no more, so that two declarations of one kind could not be told apart.
fn refuse_ambiguous(node: &Node<'_>, resources: &[ContextAwareResource]) {
    for (i, one) in resources.iter().enumerate() {
        let differs = |other: &ContextAwareResource| {
            (&other.api_version, &other.kind) == (&one.api_version, &one.kind) && other != one
        };
        if resources[..i].iter().any(differs) {
            let path = format!("{}[{i}]", node.path);
            let (kind, version) = (&one.kind, &one.api_version);
            let message = format!(
                "{kind} ({version}) is declared twice; declare it once, with the fields and namespaces of both"
            );
            node.sink.error(&path, message);
        }
    }
}
