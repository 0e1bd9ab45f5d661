//! What readers see: one state of a collection.

use std::sync::Arc;

use assent_core::Digest;

use crate::{
    CollectionSpec, FieldSelector, Key, LabelSelector, Object, Totals,
    objects::{Chunk, Objects},
};

/// One immutable state of a collection. Copies share everything.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) spec: Arc<CollectionSpec>,
    pub(crate) objects: Objects,
    pub(crate) root: Digest,
    pub(crate) totals: Totals,
}

/// Which objects are read; by default all.
#[derive(Clone, Debug, Default)]
pub struct Query<'a> {
    /// Those of one namespace.
    pub namespace: Option<&'a str>,
    /// Those with these labels.
    pub labels: LabelSelector,
    /// Those with these fields. The caller has [checked](crate::Projection::check) the paths.
    pub fields: FieldSelector,
}

// === impl Snapshot ===

impl Snapshot {
    /// What the collection is.
    pub fn spec(&self) -> &Arc<CollectionSpec> {
        &self.spec
    }

    /// The digest of the whole state.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// How much it holds.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// One object; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.objects.get(Key::new(namespace, name)?.as_str())
    }

    /// All objects, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.iter()
    }

    /// The objects that `query` selects, in the order of their keys. Fields are looked up in
    /// indexes, which are built for a path when it is used first.
    pub fn select(&self, query: &Query<'_>) -> Vec<&Arc<Object>> {
        let (start, end) = match query.namespace {
            Some(namespace) => (Key::start_of(namespace), Key::end_of(namespace)),
            // No key reaches this: names have no such character.
            None => (String::new(), '\u{10ffff}'.to_string()),
        };
        let mut selected = Vec::new();
        for chunk in self.objects.chunks_from(&start) {
            let (from, to) = (chunk.position(&start), chunk.position(&end));
            select_in(chunk, from, to, query, &mut selected);
            if to < chunk.objects().len() {
                break;
            }
        }
        selected
    }
}

fn select_in<'a>(
    chunk: &'a Chunk,
    from: usize,
    to: usize,
    query: &Query<'_>,
    selected: &mut Vec<&'a Arc<Object>>,
) {
    let objects = &chunk.objects()[from..to];
    let by_labels =
        |object: &&Arc<Object>| query.labels.is_empty() || query.labels.matches(object.labels());
    if query.fields.is_empty() {
        selected.extend(objects.iter().filter(by_labels));
        return;
    }
    let mut kept = vec![true; objects.len()];
    for requirement in query.fields.requirements() {
        let index = chunk.indexes().get(&requirement.path, chunk);
        let positions = index.get(requirement.value.as_str());
        let mut equal = vec![false; objects.len()];
        for at in positions.into_iter().flatten() {
            let at = usize::from(*at);
            if (from..to).contains(&at) {
                equal[at - from] = true;
            }
        }
        for (kept, equal) in kept.iter_mut().zip(equal) {
            *kept &= equal == requirement.equal;
        }
    }
    let kept = objects.iter().zip(kept).filter(|(_, kept)| *kept);
    selected.extend(kept.map(|(object, _)| object).filter(by_labels));
}
