//! Objects as Rego reads them: one JSON text per state of the declared collections.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use assent_context::{Object, Snapshot};
use assent_core::{Digest, policy::ContextResource};
use assent_wasm::{DataForm, DataSource, Document};
use bytes::Bytes;

use super::{
    Subject,
    data::{ContextData, ReadError},
};

/// The declared objects of one policy.
pub(super) struct Documents {
    /// The namespace of a namespaced policy, which sees no other.
    namespace: Option<String>,
    declared: Vec<ContextResource>,
    data: Arc<ContextData>,
    /// The last text: written once per state, not once per evaluation.
    last: Mutex<Option<(DataForm, Document)>>,
}

/// Groups of objects under a name.
type Tree<'a> = BTreeMap<&'a str, Vec<&'a Arc<Object>>>;

// === impl Documents ===

impl Documents {
    pub(super) fn new(subject: &Subject, data: &Arc<ContextData>) -> Self {
        Self {
            namespace: subject.policy.namespace().map(str::to_owned),
            declared: subject.declared.clone(),
            data: data.clone(),
            last: Mutex::default(),
        }
    }

    fn sees(&self, object: &Object) -> bool {
        let own = self.namespace.as_deref();
        own.is_none_or(|own| object.key().namespace() == own)
    }

    fn write(&self, form: DataForm, snapshots: &[&Snapshot]) -> Result<Bytes, String> {
        let mut out = Vec::new();
        match form {
            DataForm::Kubernetes => self.write_kubernetes(&mut out, snapshots)?,
            DataForm::Inventory => self.write_inventory(&mut out, snapshots),
        }
        Ok(out.into())
    }

    /// `<plural>.<namespace>.<name>`; cluster-scoped: `<plural>.<name>`.
    fn write_kubernetes(&self, out: &mut Vec<u8>, snapshots: &[&Snapshot]) -> Result<(), String> {
        let mut plurals = BTreeMap::new();
        for snapshot in snapshots {
            let spec = snapshot.spec();
            if let Some(other) = plurals.insert(spec.plural(), *snapshot) {
                return Err(format!(
                    "{} and {spec} are both data.kubernetes.{}: declare one of them",
                    other.spec(),
                    spec.plural()
                ));
            }
        }
        write_map(out, plurals, |out, snapshot| {
            let objects = snapshot.iter().filter(|object| self.sees(object));
            if !snapshot.spec().namespaced() {
                return write_named(out, objects);
            }
            let mut namespaces = Tree::new();
            for object in objects {
                let namespace = namespaces.entry(object.key().namespace());
                namespace.or_default().push(object);
            }
            write_map(out, namespaces, |out, objects| {
                write_named(out, objects.into_iter());
            });
        });
        Ok(())
    }

    /// `cluster[version][kind][name]` and `namespace[namespace][version][kind][name]`.
    fn write_inventory(&self, out: &mut Vec<u8>, snapshots: &[&Snapshot]) {
        type Kinds<'a> = BTreeMap<&'a str, Tree<'a>>;
        let mut cluster = Kinds::new();
        let mut namespaces: BTreeMap<&str, Kinds<'_>> = BTreeMap::new();
        for snapshot in snapshots {
            let (version, kind) = (snapshot.spec().api_version(), snapshot.spec().kind());
            for object in snapshot.iter().filter(|object| self.sees(object)) {
                let kinds = match object.key().namespace() {
                    "" => &mut cluster,
                    namespace => namespaces.entry(namespace).or_default(),
                };
                let objects = kinds.entry(version).or_default().entry(kind).or_default();
                objects.push(object);
            }
        }
        let write_kinds = |out: &mut Vec<u8>, kinds: Kinds<'_>| {
            write_map(out, kinds, |out, kinds| {
                write_map(out, kinds, |out, objects| {
                    write_named(out, objects.into_iter());
                });
            });
        };
        out.extend(b"{\"cluster\":");
        write_kinds(out, cluster);
        out.extend(b",\"namespace\":");
        write_map(out, namespaces, write_kinds);
        out.push(b'}');
    }
}

impl DataSource for Documents {
    fn load(&self, form: DataForm) -> Result<Document, String> {
        let state = self.data.load();
        let mut snapshots = Vec::new();
        for declared in &self.declared {
            let read = state.readable(declared, Instant::now());
            let (_, snapshot) = read.map_err(ReadError::into_message)?;
            snapshots.push(snapshot);
        }
        let roots: Vec<u8> = snapshots
            .iter()
            .flat_map(|snapshot| *snapshot.root().as_bytes())
            .collect();
        let version = *Digest::of(&roots).as_bytes();
        // Held while the text is written: other evaluations need the same one.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, document)) = &*last
            && (*known, document.version) == (form, version)
        {
            return Ok(document.clone());
        }
        let json = self.write(form, &snapshots)?;
        let document = Document { version, json };
        *last = Some((form, document.clone()));
        Ok(document)
    }
}

fn write_named<'a>(out: &mut Vec<u8>, objects: impl Iterator<Item = &'a Arc<Object>>) {
    out.push(b'{');
    for (i, object) in objects.enumerate() {
        write_key(out, i, object.key().name());
        out.extend_from_slice(object.json());
    }
    out.push(b'}');
}

fn write_map<T>(out: &mut Vec<u8>, map: BTreeMap<&str, T>, mut write: impl FnMut(&mut Vec<u8>, T)) {
    out.push(b'{');
    for (i, (key, value)) in map.into_iter().enumerate() {
        write_key(out, i, key);
        write(out, value);
    }
    out.push(b'}');
}

fn write_key(out: &mut Vec<u8>, i: usize, key: &str) {
    if i > 0 {
        out.push(b',');
    }
    out.extend(serde_json::Value::from(key).to_string().as_bytes());
    out.push(b':');
}

#[cfg(test)]
mod tests;
