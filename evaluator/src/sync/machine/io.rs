//! Inputs and outputs of the state machine.

use std::{collections::BTreeMap, sync::Arc};

use assent_core::{Digest, Policy, RevisionId, Version};

use super::REJECTIONS;
use crate::{
    announced::{Announced, Routes},
    failure::Failure,
    plan::{Failed, Loaded, RoutingTable},
    sync::parts::Part,
};

/// An event.
#[derive(Debug)]
pub(crate) enum Input {
    /// The set that was found on disk.
    Restored { set: Announced, whole: bool },
    /// A stream can be opened.
    Connected,
    /// A response, or one part of it, came in.
    Received(Part),
    /// A response that can't be parsed.
    Unreadable { nonce: String, why: String },
    /// The preparation of [`Output::Prepare`] is complete.
    Prepared { results: Results, timing: Timing },
    /// The time for a retry has come.
    RetryDue,
    /// Objects that policies read have changed their state.
    ContextChanged,
    /// A loaded revision fails its first reviews.
    RuntimeFailed { revision: RevisionId, why: String },
    /// It no longer fails.
    RuntimeRecovered { revision: RevisionId },
    /// The stream is gone.
    Disconnected,
}

pub(crate) type Results = BTreeMap<RevisionId, Result<(), Failure>>;

/// An action for the caller; actions are performed in order.
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    Open(Hello),
    Prepare(Vec<Arc<Policy>>),
    Swap(Box<Swap>),
    Answer(Answer),
    /// Retry transient failures, after a delay that grows with the attempt.
    RetryLater {
        attempt: u32,
    },
    /// A response was rejected as a whole: unless a later one resolves it, request the whole set again.
    ResyncLater,
    /// End the stream and open another one.
    Reconnect,
}

/// A set to put in place, and whether the control plane has confirmed it.
#[derive(Debug, PartialEq)]
pub(crate) struct Swap {
    pub(crate) table: RoutingTable,
    pub(crate) loaded: Loaded,
    pub(crate) routes: Routes,
    pub(crate) whole: bool,
    pub(crate) confirmed: bool,
    /// The newest leadership term that was seen.
    pub(crate) lease_transitions: u64,
}

/// The first message of a stream.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Hello {
    pub(crate) version: Option<Version>,
    pub(crate) revisions: BTreeMap<RevisionId, Digest>,
    /// The newest leadership that was seen.
    pub(crate) lease_transitions: u64,
}

/// The answer to a response.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) nonce: String,
    pub(crate) version: Option<Version>,
    /// Present: a NACK.
    pub(crate) error: Option<String>,
    pub(crate) rejected: Vec<(RevisionId, Failure)>,
    pub(crate) truncated: bool,
    pub(crate) timing: Timing,
}

/// How long each step of applying took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timing {
    pub(crate) fetch_us: u64,
    pub(crate) compile_us: u64,
    pub(crate) self_test_us: u64,
    pub(crate) swap_us: u64,
}

// === impl Answer ===

impl Answer {
    /// The part of an answer that reports failures.
    pub(crate) fn about(failed: &Failed) -> Self {
        let rejected = failed.iter().take(REJECTIONS);
        let error = failed.iter().next().map(|(revision, failure)| {
            let (count, why) = (failed.len(), &failure.message);
            crate::failure::cut(match count {
                1 => format!("failed to load {revision}: {why}"),
                _ => format!("failed to load {count} revisions, the first is {revision}: {why}"),
            })
        });
        Self {
            error,
            rejected: rejected
                .map(|(id, failure)| (id.clone(), failure.clone()))
                .collect(),
            truncated: failed.len() > REJECTIONS,
            ..Self::default()
        }
    }
}
