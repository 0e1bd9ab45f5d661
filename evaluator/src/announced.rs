//! The announced set: every revision and route of the last verified response, whether or not it could be loaded.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use assent_core::{Digest, Policy, RevisionId, Route, Version, snapshot};

#[cfg(test)]
pub(crate) mod tests;

/// The set that the control plane wants this evaluator to have. Immutable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Announced {
    version: Version,
    offers: Offers,
    routes: Routes,
}

pub(crate) type Offers = BTreeMap<RevisionId, Arc<Offer>>;
pub(crate) type Routes = BTreeMap<Arc<str>, Arc<Route>>;

/// One revision as it was announced.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offer {
    pub(crate) revision: RevisionId,
    /// As announced: the version is computed over it.
    pub(crate) content_digest: Digest,
    /// The revision, its digest verified, or why it can't be used. A newer control plane may send fields that this
    /// evaluator does not know: that rejects one revision, not the set.
    pub(crate) body: Result<Arc<Policy>, String>,
    /// The control plane does not give its settings to this evaluator, which was injected into a pod of a user. It is
    /// ready without the revision: otherwise one tenant's policy would keep pods of others from starting.
    pub(crate) withheld: bool,
}

/// One whole response, its parts put together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Update {
    pub(crate) version: String,
    pub(crate) offers: Vec<Arc<Offer>>,
    pub(crate) removed_revisions: Vec<RevisionId>,
    pub(crate) routes: Vec<Arc<Route>>,
    pub(crate) removed_routes: Vec<Arc<str>>,
    pub(crate) no_change: bool,
}

/// Why a response is rejected as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("failed to verify the set: revision {0} is listed twice in one response")]
    DuplicateRevision(RevisionId),
    #[error("failed to verify the set: route {0} is listed twice in one response")]
    DuplicateRoute(Arc<str>),
    #[error(
        "failed to verify the set: it is announced as version {announced:?} but its content is version {computed}"
    )]
    Version {
        announced: String,
        computed: Version,
    },
}

// === impl Announced ===

impl Announced {
    pub(crate) fn new(offers: Offers, routes: Routes) -> Self {
        let version = snapshot::version(
            offers
                .values()
                .map(|offer| (offer.revision.as_str(), offer.content_digest)),
            routes.values().map(AsRef::as_ref),
        );
        Self {
            version,
            offers,
            routes,
        }
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn offers(&self) -> &Offers {
        &self.offers
    }

    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// This set changed by a response, if the result is the version that the response names.
    /// `complete_routes`: the response's routes replace the table (first response of a stream).
    pub(crate) fn updated(&self, update: &Update, complete_routes: bool) -> Result<Self, Error> {
        update.reject_duplicates()?;
        let next = if update.no_change {
            self.clone()
        } else {
            self.merged(update, complete_routes)
        };
        if next.version.to_string() == update.version {
            Ok(next)
        } else {
            Err(Error::Version {
                announced: update.version.clone(),
                computed: next.version,
            })
        }
    }

    fn merged(&self, update: &Update, complete_routes: bool) -> Self {
        let mut offers = self.offers.clone();
        for revision in &update.removed_revisions {
            offers.remove(revision);
        }
        for offer in &update.offers {
            offers.insert(offer.revision.clone(), offer.clone());
        }
        let mut routes = if complete_routes {
            Routes::new()
        } else {
            self.routes.clone()
        };
        for path in &update.removed_routes {
            routes.remove(path);
        }
        for route in &update.routes {
            routes.insert(route.path.clone(), route.clone());
        }
        Self::new(offers, routes)
    }
}

impl Default for Announced {
    fn default() -> Self {
        Self::new(Offers::new(), Routes::new())
    }
}

// === impl Offer ===

impl Offer {
    /// A revision that was verified before.
    pub(crate) fn known(policy: &Arc<Policy>) -> Arc<Self> {
        Arc::new(Self {
            revision: policy.revision.clone(),
            content_digest: policy.content_digest,
            body: Ok(policy.clone()),
            withheld: false,
        })
    }

    /// A revision that came from outside: its content must have the digest that it claims.
    pub(crate) fn verified(policy: Policy) -> Self {
        let computed = policy.content.digest();
        let body = if computed == policy.content_digest {
            Ok(Arc::new(policy.clone()))
        } else if !policy.has_content() {
            Err(
                "the control plane no longer has the content of this revision; only replicas that have it loaded \
                 serve it, until the policy is edited or applied again"
                    .to_owned(),
            )
        } else {
            Err(format!(
                "failed to verify the content: announced as {}, computed {computed}; \
                 it was changed in transit, or it uses fields that this evaluator does not know",
                policy.content_digest
            ))
        };
        Self {
            revision: policy.revision,
            content_digest: policy.content_digest,
            body,
            withheld: false,
        }
    }
}

// === impl Update ===

impl Update {
    /// Names of the revisions that came with their content.
    pub(crate) fn offered(&self) -> BTreeSet<RevisionId> {
        self.offers
            .iter()
            .map(|offer| offer.revision.clone())
            .collect()
    }

    fn reject_duplicates(&self) -> Result<(), Error> {
        let mut revisions = BTreeSet::new();
        for offer in &self.offers {
            if !revisions.insert(&offer.revision) {
                return Err(Error::DuplicateRevision(offer.revision.clone()));
            }
        }
        let mut paths = BTreeSet::new();
        for route in &self.routes {
            if !paths.insert(&route.path) {
                return Err(Error::DuplicateRoute(route.path.clone()));
            }
        }
        Ok(())
    }
}
