//! Reads `settingsFrom`.

use assent_core::policy::is_dns_subdomain;

use super::{
    Options,
    reader::{Fields, Node},
};
use crate::settings::{MAX_PATH_SEGMENTS, MAX_SOURCES, SecretKeyRef, SettingsSource};

pub(super) fn read(f: &mut Fields<'_>, namespaced: bool, options: &Options) -> Vec<SettingsSource> {
    let Some(node) = f.get("settingsFrom") else {
        return Vec::new();
    };
    let items = node.items();
    if items.is_empty() {
        return Vec::new();
    }
    if options.standalone {
        node.error(
            "works only in a cluster, because there are no Secrets here; put the values into settings",
        );
    }
    if items.len() > MAX_SOURCES {
        node.error(format!("must not have more than {MAX_SOURCES} entries"));
    }
    let read = |item: &Node<'_>| read_source(item, namespaced, options);
    items.iter().filter_map(read).collect()
}

fn read_source(node: &Node<'_>, namespaced: bool, options: &Options) -> Option<SettingsSource> {
    let mut f = node.fields();
    let secret = f.require("secretKeyRef", "it names a Secret and a key in it");
    let secret_key_ref = secret.and_then(|node| read_key(&node, namespaced, options));
    let path = f.get("path").and_then(|node| read_path(&node));
    f.close();
    Some(SettingsSource {
        secret_key_ref: secret_key_ref?,
        path,
    })
}

fn read_key(node: &Node<'_>, namespaced: bool, options: &Options) -> Option<SecretKeyRef> {
    let mut f = node.fields();
    let name = f.require("name", "it is the name of a Secret");
    let key = f.require("key", "it is a key in the Secret");
    f.close();
    let (name_node, key_node) = (name?, key?);
    let (name, key) = (name_node.string()?, key_node.string()?);
    if !is_dns_subdomain(&name) {
        name_node.error(format!("\"{name}\" is not the name of a Secret"));
    }
    // A cluster policy reads the namespace where the keys of the control plane are.
    if !namespaced && options.reserved.secrets.contains(&name) {
        name_node.error(format!(
            "the Secret \"{name}\" belongs to the control plane; use another one"
        ));
    }
    let is_key = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if key.is_empty() || key.len() > 253 || !key.chars().all(is_key) {
        key_node.error("must be a key of a Secret: letters, digits, \"-\", \"_\" and \".\"");
    }
    Some(SecretKeyRef { name, key })
}

fn read_path(node: &Node<'_>) -> Option<String> {
    let path = node.string()?;
    let mut segments = path.split('.');
    let count = segments.clone().count();
    if path.len() > 512 || count > MAX_PATH_SEGMENTS || segments.any(str::is_empty) {
        node.error(format!(
            "must be names with dots between them, such as \"auth.token\"; at most {MAX_PATH_SEGMENTS} names"
        ));
    }
    Some(path)
}
