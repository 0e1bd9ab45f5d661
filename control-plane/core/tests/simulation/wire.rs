//! What travels between the control plane and a client, with the names of the wire.

use std::{collections::BTreeSet, sync::Arc};

use assent_core::{
    Policy, RevisionId, Route, Version,
    session::{Answer, Body, InitialRequest, Response},
};

/// A response, as a client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Down {
    pub(crate) nonce: String,
    pub(crate) version: Version,
    pub(crate) policies: Vec<Arc<Policy>>,
    pub(crate) removed_revisions: Vec<RevisionId>,
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) removed_routes: Vec<Arc<str>>,
    pub(crate) no_change: bool,
}

/// An answer, and what may be concluded from it.
#[derive(Clone, Debug)]
pub(crate) struct Up {
    pub(crate) answer: Answer,
    pub(crate) claim: Claim,
}

/// A first message.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) first: InitialRequest,
    pub(crate) instance: String,
    /// What is loaded while it is written.
    pub(crate) loaded: BTreeSet<RevisionId>,
}

/// What an answer lets its reader believe about its sender.
#[derive(Clone, Debug, Default)]
pub(crate) enum Claim {
    /// Nothing new.
    #[default]
    Nothing,
    /// Exactly these are loaded.
    Loaded(BTreeSet<RevisionId>),
    /// What it had before, which is nothing if it said nothing before. A late refusal that
    /// crossed the refused response is not known: no answer has told of it.
    AsBefore,
    /// Everything that it said of this response is void.
    TakenBack,
    /// Its sender contradicts itself: anything may be believed.
    Anything,
}

// === impl Down ===

impl Down {
    pub(crate) fn of(response: &Response) -> Self {
        let mut down = Self {
            nonce: response.nonce.to_string(),
            version: response.to.version(),
            policies: Vec::new(),
            removed_revisions: Vec::new(),
            routes: Vec::new(),
            removed_routes: Vec::new(),
            no_change: false,
        };
        let delta = match &response.body {
            Body::NoChange => {
                down.no_change = true;
                return down;
            }
            Body::Full => {
                down.policies = response.to.policies().cloned().collect();
                down.routes = response.to.routes().cloned().collect();
                return down;
            }
            Body::Delta(from) => response.to.delta_from(from),
            Body::Claim(delta) => delta.clone(),
        };
        down.policies = delta.policies;
        down.removed_revisions = delta.removed_revisions;
        down.routes = delta.routes;
        down.removed_routes = delta.removed_routes;
        down
    }
}
