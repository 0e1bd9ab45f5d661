//! What the control plane says of a collection after the changes that it has sent.

use std::time::{Duration, SystemTime};

use assent_core::Digest;

use crate::{CollectionId, Totals};

/// How a collection relates to what the API server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncState {
    /// There was no complete list yet: nothing may be concluded from what is missing.
    Syncing,
    /// Complete, and the watch goes on.
    Synced,
    /// Was complete; the watch is interrupted.
    Stale,
    /// The control plane may no longer read the kind. What there was is still served.
    Forbidden,
    /// The API server does not serve the kind: reads are errors, not empty answers (C9).
    Absent,
}

/// The state of a collection at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The collection.
    pub collection: CollectionId,
    /// The root of everything that was sent so far.
    pub root: Digest,
    /// Of the API server, for people who look.
    pub resource_version: String,
    /// When the sender knew last that this is what the API server has, by its wall clock.
    pub observed_at: SystemTime,
    /// How complete it is.
    pub state: SyncState,
    /// Why it is not synced.
    pub detail: String,
    /// How much it holds.
    pub totals: Totals,
    /// How long before the message was sent `observed_at` was, by the sender's clock.
    pub age: Duration,
}

// === impl SyncState ===

impl SyncState {
    /// Every state, in the order of the wire's numbers.
    pub const ALL: [SyncState; 5] = [
        SyncState::Syncing,
        SyncState::Synced,
        SyncState::Stale,
        SyncState::Forbidden,
        SyncState::Absent,
    ];

    /// Whether a complete list was seen, so that reads can be answered.
    pub fn is_readable(self) -> bool {
        matches!(
            self,
            SyncState::Synced | SyncState::Stale | SyncState::Forbidden
        )
    }

    /// For labels and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            SyncState::Syncing => "syncing",
            SyncState::Synced => "synced",
            SyncState::Stale => "stale",
            SyncState::Forbidden => "forbidden",
            SyncState::Absent => "absent",
        }
    }
}
