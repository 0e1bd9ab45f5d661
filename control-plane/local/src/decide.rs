//! Compares a scan of the directory with the last one. Pure: a scan in, a decision out.
//!
//! Absence of data never removes a policy: only a directory that was read, in a file that was
//! read, shows that a policy is gone, and too many removals at once are held back.

mod claims;

use std::collections::BTreeMap;

use assent_api::{
    Manifest,
    parse::{self, Object},
};
use assent_core::PolicyKey;

use crate::directory::{Document, ModuleFile, Scan, State};
use claims::Claims;

/// From this many policies on, losing more than half of them at once is held back. Fewer are
/// looked over by a person; one `rm` too many is noticed.
pub const MASS_REMOVAL_FROM: usize = 10;

/// How decisions are made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether any number of policies may be removed at once.
    pub allow_mass_removal: bool,
}

/// All objects, by name.
pub type Objects = BTreeMap<Object, Entry>;

/// An object in its last valid state.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The file that owns it.
    pub file: String,
    /// Its content.
    pub manifest: Manifest,
    /// The module's file, if the policy has one.
    pub module: Option<ModuleFile>,
    /// Its manifest is gone, and that was held back. It stays so, whatever else changes,
    /// until the manifest is back or mass removal is allowed.
    pub held: bool,
}

/// What follows from a scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Whether the directory was read. What does not exist is known to be absent only then.
    pub synced: bool,
    /// Everything that exists now: what the next decision starts from.
    pub objects: Objects,
    /// Objects that are new or differ from before.
    pub changed: Vec<Object>,
    /// Objects that are gone.
    pub removed: Vec<Object>,
    /// Policies that are kept although their manifests are gone.
    pub held: Option<Held>,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

/// Policies that are kept although their manifests are gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} of {total} policies are gone from the directory at once and are kept in force: put their manifests back, or allow it with --allow-mass-removal", policies.len())]
pub struct Held {
    /// Their names.
    pub policies: Vec<PolicyKey>,
    /// Policies that there were.
    pub total: usize,
}

/// Something that is wrong with an object, a file or the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The object that it concerns, if that is known.
    pub object: Option<Object>,
    /// The file and line, if the object is not known.
    pub place: Option<String>,
    /// The kind of problem.
    pub reason: Reason,
    /// The place, the problem and the remedy.
    pub message: String,
}

/// Kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The directory or a file cannot be read.
    Unreadable,
    /// A document is not valid; the last valid state stays.
    Invalid,
    /// Two documents describe one object; the first stays.
    Duplicate,
    /// The module's file cannot be read.
    PullError,
}

/// Decides what `scan` changes about `previous`.
pub fn decide(previous: &Objects, scan: &Scan, options: Options) -> Decision {
    match &scan.state {
        State::Read => Deciding::new(previous, scan).run(options),
        State::Missing => unchanged(previous, "the directory of policies is missing"),
        State::Unreadable(error) => unchanged(
            previous,
            &format!("failed to read the directory of policies: {error}"),
        ),
    }
}

fn unchanged(previous: &Objects, why: &str) -> Decision {
    let message = format!(
        "{why}; nothing is removed, {} objects stay as they were",
        previous.len()
    );
    Decision {
        objects: previous.clone(),
        problems: vec![Problem {
            object: None,
            place: None,
            reason: Reason::Unreadable,
            message,
        }],
        ..Decision::default()
    }
}

struct Deciding<'a> {
    previous: &'a Objects,
    scan: &'a Scan,
    decision: Decision,
}

// === impl Deciding ===

impl<'a> Deciding<'a> {
    fn new(previous: &'a Objects, scan: &'a Scan) -> Self {
        let decision = Decision {
            synced: true,
            ..Decision::default()
        };
        Self {
            previous,
            scan,
            decision,
        }
    }

    fn run(mut self, options: Options) -> Decision {
        let claims = Claims::of(self.previous, self.scan);
        for (winner, loser) in &claims.conflicts {
            self.duplicate(winner, loser);
        }
        for document in claims.winners.values() {
            self.take(document);
        }
        for document in &claims.nameless {
            let place = format!("{}:{}", document.file, document.line);
            self.unnamed(place, Reason::Invalid, invalid(document));
        }
        for (file, error) in &self.scan.unreadable {
            let message =
                format!("failed to read {file}: {error}; what came from it stays as it was");
            self.unnamed(file.clone(), Reason::Unreadable, message);
        }
        let gone = self.keep_what_is_uncertain(&claims);
        self.remove(gone, options);
        self.decision
    }

    /// Takes the one document that speaks for its object.
    fn take(&mut self, document: &Document) {
        let Some(object) = document.object.clone() else {
            return;
        };
        let before = self.previous.get(&object);
        if let Some(owner) = before.filter(|owner| self.may_still_own(owner, document)) {
            self.decision.objects.insert(object, owner.clone());
            return;
        }
        let refused = match (&document.result, before) {
            (Err(_), _) => Some(invalid(document)),
            (Ok(manifest), Some(before)) => immutable(document, &before.manifest, manifest),
            (Ok(_), None) => None,
        };
        if let Some(message) = refused {
            self.problem(Some(object.clone()), Reason::Invalid, message);
            if let Some(before) = before {
                self.decision.objects.insert(object, before.released());
            }
            return;
        }
        let Ok(manifest) = &document.result else {
            return;
        };
        if let Some(ModuleFile {
            digest: Err(error), ..
        }) = &document.module
        {
            let message = format!("{}: {error}", document.place());
            self.problem(Some(object.clone()), Reason::PullError, message);
        }
        let entry = Entry {
            file: document.file.clone(),
            manifest: manifest.clone(),
            module: document.module.clone(),
            held: false,
        };
        if before.map(Entry::released).as_ref() != Some(&entry) {
            self.decision.changed.push(object.clone());
        }
        self.decision.objects.insert(object, entry);
    }

    /// Whether the object's own file may still have it, so that no other may take it over.
    fn may_still_own(&self, owner: &Entry, document: &Document) -> bool {
        owner.file != document.file && self.is_unknown(&owner.file)
    }

    fn is_unknown(&self, file: &str) -> bool {
        self.scan.unsettled.contains(file) || self.scan.unreadable.contains_key(file)
    }

    /// Keeps objects without a document whose file may still have one; gives those that are
    /// really gone.
    fn keep_what_is_uncertain(&mut self, claims: &Claims<'_>) -> Vec<Object> {
        let mut gone = Vec::new();
        for (object, entry) in self.previous {
            if claims.winners.contains_key(object) {
                continue;
            }
            // A file that was cut off may have lost whole documents, or half a name.
            let mut documents = self.scan.documents.iter();
            let broken = documents.find(|d| d.file == entry.file && d.result.is_err());
            if let Some(document) = broken {
                self.problem(Some(object.clone()), Reason::Invalid, invalid(document));
            }
            if let Some(error) = self.scan.unreadable.get(&entry.file) {
                let message = format!("failed to read {}: {error}", entry.file);
                self.problem(Some(object.clone()), Reason::Invalid, message);
            }
            if broken.is_some() || self.is_unknown(&entry.file) {
                self.decision.objects.insert(object.clone(), entry.clone());
            } else {
                gone.push(object.clone());
            }
        }
        gone
    }

    fn remove(&mut self, gone: Vec<Object>, options: Options) {
        let policies: Vec<PolicyKey> = gone.iter().filter_map(policy_key).collect();
        let total = self.previous.keys().filter_map(policy_key).count();
        let emptied = self.scan.documents.is_empty() && policies.len() > 1;
        let most = total >= MASS_REMOVAL_FROM && policies.len() * 2 > total;
        // What was held is not let go because new policies made it a smaller part.
        let pending = gone.iter().any(|object| self.previous[object].held);
        if !options.allow_mass_removal && (emptied || most || pending) {
            for object in gone {
                let entry = self.previous[&object].held();
                self.decision.objects.insert(object, entry);
            }
            self.decision.held = Some(Held { policies, total });
        } else {
            self.decision.removed = gone;
        }
    }

    fn duplicate(&mut self, winner: &Document, loser: &Document) {
        let object = loser.object.clone();
        let name = object.as_ref().map(ToString::to_string).unwrap_or_default();
        let message = format!(
            "{name} is in {} and in {}; the first is used, remove the second or rename it",
            winner.place(),
            loser.place()
        );
        self.problem(object, Reason::Duplicate, message);
    }

    fn problem(&mut self, object: Option<Object>, reason: Reason, message: String) {
        self.decision.problems.push(Problem {
            object,
            place: None,
            reason,
            message,
        });
    }

    /// A problem of a file or a document that names no object.
    fn unnamed(&mut self, place: String, reason: Reason, message: String) {
        self.decision.problems.push(Problem {
            object: None,
            place: Some(place),
            reason,
            message,
        });
    }
}

// === impl Entry ===

impl Entry {
    fn released(&self) -> Self {
        Self {
            held: false,
            ..self.clone()
        }
    }

    fn held(&self) -> Self {
        Self {
            held: true,
            ..self.clone()
        }
    }
}

fn policy_key(object: &Object) -> Option<PolicyKey> {
    match object {
        Object::Policy(key) => Some(key.clone()),
        Object::Server(_) => None,
    }
}

fn invalid(document: &Document) -> String {
    match &document.result {
        Err(error) => format!("{}: {error}", document.place()),
        Ok(_) => document.place(),
    }
}

fn immutable(document: &Document, before: &Manifest, now: &Manifest) -> Option<String> {
    let (Manifest::Policy(before), Manifest::Policy(now)) = (before, now) else {
        return None;
    };
    let error = parse::immutable_fields(before, now).err()?;
    Some(format!("{}: {error}", document.place()))
}

#[cfg(test)]
mod tests;
