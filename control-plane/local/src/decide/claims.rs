//! Which document describes an object, if several claim to.

use std::collections::BTreeMap;

use assent_api::parse::Object;

use super::Objects;
use crate::directory::{Document, Scan};

/// Every document of a scan, sorted by what it is about.
pub(super) struct Claims<'a> {
    /// The one document that speaks for each object.
    pub(super) winners: BTreeMap<&'a Object, &'a Document>,
    /// Pairs of a winner and a document that it beat.
    pub(super) conflicts: Vec<(&'a Document, &'a Document)>,
    /// Documents whose object is unknown.
    pub(super) nameless: Vec<&'a Document>,
}

// === impl Claims ===

impl<'a> Claims<'a> {
    pub(super) fn of(previous: &Objects, scan: &'a Scan) -> Self {
        let mut claims = Self {
            winners: BTreeMap::new(),
            conflicts: Vec::new(),
            nameless: Vec::new(),
        };
        let mut documents: Vec<&Document> = scan.documents.iter().collect();
        documents.sort_by_key(|document| rank(previous, document));
        for document in documents {
            claims.add(document);
        }
        claims
    }

    fn add(&mut self, document: &'a Document) {
        let Some(object) = &document.object else {
            self.nameless.push(document);
            return;
        };
        match self.winners.get(object) {
            Some(winner) => self.conflicts.push((winner, document)),
            None => {
                self.winners.insert(object, document);
            }
        }
    }
}

/// The file that owns the object comes first, then the others in order of their names: a file
/// that is added cannot take over a policy that another file has.
fn rank<'d>(previous: &Objects, document: &'d Document) -> (bool, &'d str, usize) {
    let owner = document
        .object
        .as_ref()
        .and_then(|object| previous.get(object));
    let owns = owner.is_some_and(|entry| entry.file == document.file);
    (!owns, &document.file, document.number)
}
